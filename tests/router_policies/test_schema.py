from router_policies.schema import TeamFile, json_schema


def _undescribed(schema, node, path, seen):
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        if name in seen:
            return
        seen.add(name)
        node = schema["$defs"][name]
    for name, field in node.get("properties", {}).items():
        if "description" not in field:
            yield f"{path}.{name}"
        yield from _undescribed(schema, field, f"{path}.{name}", seen)
    for word in ("anyOf", "oneOf"):
        for inner in node.get(word, ()):
            yield from _undescribed(schema, inner, path, seen)
    for word in ("items", "additionalProperties"):
        if isinstance(node.get(word), dict):
            yield from _undescribed(schema, node[word], path, seen)


def test_every_field_has_a_description():
    """An editor shows them as the author types."""
    schema = json_schema()
    assert list(_undescribed(schema, schema, "", set())) == []
    assert schema["$schema"].startswith("https://json-schema.org")


def test_names_in_the_schema_are_those_of_the_file():
    """`class`, not `class_`."""
    rule = json_schema()["$defs"]["RulePart"]
    assert {"name", "when", "class"} <= set(rule["properties"])
    assert json_schema()["required"] == ["team"]
    assert TeamFile.model_config["extra"] == "forbid"
