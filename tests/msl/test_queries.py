"""Queries of syntax trees: few are given to tree-sitter, which takes long to read one, and the others find what it would."""

import pytest
from metalops.msl.source import queries
from metalops.msl.source.parse import Source, _language

TEXT = """
enum E { one, two };
struct S { int a = 1; int f() const { return a; } struct T { float b[2]; } t; };
namespace n { typedef int number; using word = unsigned; int zero() { ; return 0; } }
template <typename U> U twice(U x) { return x + x; }
void k(float* out, n::number i) {
  float values[4] = {1, 2, 3, 4};
  auto add = [&](float y) { return values[i] + (y); };
  for (int j = 0; j < 4; ++j) { if (j == i) continue; out[j] = add(float(twice<int>(j))); }
  S s; s.a = i; s.t.b[0] = (i ? s.f() : (int)s.t.b[1]);
  i;
}
"""
WRONG = "void f( { return 1; }\nint x = ;\n"  # the parser adds nodes
STRAY = "int f(int a) { return a + @ a; }\nenum E { one = 1 };\nint x = `2;\n"
QUERIES = (
    "(identifier) @n",
    "(call_expression) @c",
    "(lambda_expression) @l",
    "(ERROR) @e",
    "(_) @n",
    "(number_literal) @a (identifier) @b",
    "[(identifier) (type_identifier)\n (field_identifier)] @n\n(declaration) @d",
    "[(function_definition) (field_declaration_list)] @n",
    "[(expression_statement) (return_statement)] @n",
    "(return_statement (_) @value) @r",
    "(expression) @e",
    '(assignment_expression operator: "=") @a (condition_clause "(" @p)',
    "[(do_statement) (goto_statement)] @n",
    "(identifier) @a [(identifier) (declaration)] @b",
    "(enumerator name: (identifier) @n)",
    "(call_expression function: (identifier)) @c",
    "(template_declaration (function_definition) @f)",
    "(field_declaration default_value: (_)) @d",
    "(compound_statement (_) @s)",
    '(binary_expression "+") @b',
    '(binary_expression operator: "+" @o)',
)


def _nodes(root):
    yield root
    for child in root.children:
        yield from _nodes(child)


def _ids(captures):
    return {name: sorted(n.id for n in nodes) for name, nodes in captures.items() if nodes}


@pytest.mark.parametrize("text", [TEXT, WRONG, STRAY, ""], ids=["right", "wrong", "stray", "empty"])
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_finds_what_tree_sitter_does(query, text):
    source = Source(text)
    for node in (None, *_nodes(source.root)):
        cursor = queries._cursor(_language(), query)
        assert _ids(source.captures(query, node)) == _ids(cursor.captures(node or source.root))


def test_nodes_are_found_in_order():
    found = list(Source(TEXT).find("[(identifier) (expression_statement)] @n"))
    assert [n.start_byte for n in found] == sorted(n.start_byte for n in found)
    (same,) = [
        n for n in found if n.type == "expression_statement" and n.end_byte - n.start_byte == 2
    ]
    at = found.index(same)
    assert found[at + 1] == same.named_children[0]  # the node around is first


def test_tree_sitter_reads_only_queries_of_what_is_in_nodes(monkeypatch):
    read = []
    monkeypatch.setattr(queries, "_cursor", lambda language, query: read.append(query))
    source = Source(TEXT)
    assert len(list(source.find("(identifier) @n"))) == 35
    assert source.captures("(cast_expression) @n", source.root.children[0]) == {}
    assert source.captures("(goto_statement label: (_) @n)") == {}
    assert source.captures("(do_statement) @d (goto_statement) @g") == {}
    assert len(list(source.find("(enumerator name: (identifier) @n)"))) == 2
    assert len(list(source.find("(field_declaration default_value: (_)) @d"))) == 1
    assert len(list(Source(STRAY).find("(identifier) @n"))) > 3
    assert read == []
