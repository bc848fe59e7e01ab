import pytest

from router_policies.traces import BadTrace, Mix, merged, read

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.9799600,3180,8\n"
MOONCAKE = '{"timestamp": 1000, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
OURS = '{"at_s": 0.5, "prompt_tokens": 7, "output_tokens": 3, "team": "search", "wished_class": "batch", "blocks": [4]}\n\n'


@pytest.fixture
def file(tmp_path):
    def write(text, name="trace"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_each_form_is_told_by_its_content(file):
    """Times from the first call on; prefixes where the trace knows them."""
    azure = list(read(file(AZURE), team="t"))
    assert [(call.at_s, call.prompt_tokens, call.output_tokens, call.team) for call in azure] == [(0.0, 4808, 10, "t"), (1.0, 3180, 8, "t")]
    (mooncake,) = read(file(MOONCAKE))
    assert (mooncake.at_s, mooncake.blocks, mooncake.block_tokens) == (1.0, (0, 1, 2), 512)
    (ours,) = read(file(OURS), team="t")
    assert (ours.team, ours.wished_class, ours.blocks) == ("search", "batch", (4,))


def test_several_are_merged_by_time(file):
    """In one stream, without reading them whole."""
    found = merged([read(file(AZURE, "a")), read(file(OURS, "b"))])
    assert [call.at_s for call in found] == [0.0, 0.5, 1.0]


def test_a_mix_is_dealt_out_by_conversation():
    """The same in every run, near the shares, none for what is left over."""
    mix = Mix({"a": 0.3, "b": 0.5})
    dealt = [mix.of(f"s{n}") for n in range(5_000)]
    assert dealt == [mix.of(f"s{n}") for n in range(5_000)]
    assert [round(dealt.count(name) / 5_000, 1) for name in ("a", "b", None)] == [0.3, 0.5, 0.2]


@pytest.mark.parametrize(("text", "says"), [
    ("hello\n", ":1: is neither"), (AZURE + "x,1,2\n", ":4: ValueError"), (AZURE + "2023-11-16 18:17:03,,2\n", ":4: ValueError"),
    (MOONCAKE + '{"hash_ids": []}\n', ":2: KeyError"), (OURS + '{"at": 1}\n', ":3: unknown field 'at'"),
    (OURS + '{"at_s": 1}\n', ":3: prompt_tokens must be there"),
    (OURS + '{"at_s": "x", "prompt_tokens": 1, "output_tokens": 1}\n', ":3: at_s must be there, a number"), (OURS + "[" * 100_000 + "\n", ":3: is not a JSON object"), (OURS + "[1]\n", ":3: is not a JSON object"), (OURS + "{\n", ":3: is not a JSON object"), ("", ":1: is neither"),
])
def test_a_bad_line_is_named(file, text, says):
    """File, line, and what is wrong."""
    with pytest.raises(BadTrace, match=says.replace("[", "\\[")):
        list(read(file(text)))


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    with pytest.raises(BadTrace, match="noise:1: is not UTF-8"):
        list(read(tmp_path / "noise"))
