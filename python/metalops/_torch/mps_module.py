"""Functions that torch.mps lacks of a device module, through which torch.distributed handles devices: DeviceMesh,
fully_shard, checkpoints.

Before version 2.15 of torch there is one device with one stream, so all synchronisation between streams is trivial. A
function that torch has already stays torch's; its Stream learns what the streams of other devices take.
"""

from __future__ import annotations

import contextlib
import functools

import torch


class Stream:
    """The stream of the mps device. All objects of this class stand for the same stream."""

    device = torch.device("mps", 0)

    def __init__(self, device=None, priority: int = 0) -> None:
        """device, priority: as other devices' streams have them; there is only one stream here."""

    def synchronize(self) -> None:
        """Waits until the stream has finished all its work."""
        torch.mps.synchronize()

    def record_event(self, event: torch.mps.Event | None = None) -> torch.mps.Event:
        """Records an event, a new one if none is given, and returns it."""
        event = event or torch.mps.Event()
        event.record()
        return event

    def wait_event(self, event: torch.mps.Event) -> None:
        """Does nothing: work recorded in the stream precedes what follows."""

    def wait_stream(self, stream: Stream) -> None:
        """Does nothing: it is the same stream."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return hash(Stream)


@functools.cache
def _the_stream() -> Stream:
    return Stream()


def current_stream(device=None) -> Stream:
    """Returns the stream."""
    return _the_stream()


def stream(stream: Stream | None) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which kernels are launched in a stream, as they are anyway."""
    return contextlib.nullcontext()


def is_initialized() -> bool:
    """Returns true if the device can be used, which needs no preparation."""
    return torch.mps.is_available()


def current_device() -> int:
    """Returns the index of the device: 0."""
    return 0


def set_device(device) -> None:
    """Selects the device; raises RuntimeError unless it is the only one. device: index, name or torch.device."""
    chosen = torch.device("mps", device) if isinstance(device, int) else torch.device(device)
    if chosen.type != "mps" or chosen.index not in (None, 0):
        raise RuntimeError(f"torch.mps.set_device: expected mps or mps:0, but got {device!r}")


def _take_what_other_streams_take(cls: type) -> None:
    """Lets torch's Stream of 2.15 take a device and a priority, and wait for the events of torch.mps, which are not those of
    torch.Event: the host waits, as such an event cannot be waited for in a stream of one's choice."""
    new, wait_event = cls.__new__, cls.wait_event

    @functools.wraps(new)
    def with_device_and_priority(cls, device=None, priority: int = 0, **arguments):
        if device is not None:
            set_device(device)
        return new(cls, **arguments)

    @functools.wraps(wait_event)
    def with_events_of_mps(self, event) -> None:
        if isinstance(event, torch.mps.Event):
            event.synchronize()
        else:
            wait_event(self, event)

    cls.__new__, cls.wait_event = with_device_and_priority, with_events_of_mps


class device(contextlib.ContextDecorator):
    """A context in which a device is the current one, as other devices' modules have it; there is only one here."""

    def __init__(self, device) -> None:
        set_device(device)

    def __enter__(self) -> device:
        return self

    def __exit__(self, *error) -> None:
        pass


@functools.cache
def install() -> None:
    if hasattr(torch.mps, "Stream"):
        _take_what_other_streams_take(torch.mps.Stream)
    for thing in (
        Stream,
        current_stream,
        stream,
        is_initialized,
        current_device,
        set_device,
        device,
    ):
        if not hasattr(torch.mps, thing.__name__):
            setattr(torch.mps, thing.__name__, thing)
