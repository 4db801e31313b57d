// Starts Python in a program that uses the software device, before main(): the compiler of Metal is
// written in Python. `python -m metalops build-mac` links it into such programs.
#include <Python.h>

__attribute__((constructor(101))) static void metalops_start_python(void) {
  if (Py_IsInitialized()) return;
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  config.install_signal_handlers = 0;
  config.parse_argv = 0;
  // Tells where the packages of the environment are.
  PyStatus status = PyConfig_SetBytesString(&config, &config.program_name, METALOPS_PYTHON);
  if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  if (PyStatus_Exception(status)) Py_ExitStatusException(status);
  if (PyRun_SimpleString("import metalops") != 0) exit(1);
  PyEval_SaveThread();  // threads of the program take turns
}
