"""Which files a name means; names of files are those of published repositories."""

import pytest

from mtpcore.errors import ModelFileError
from mtpcore.hub import ModelName, Offered, choose_model
from mtpcore.hub.choice import name_models

SIDECARS = ["mtp-*.gguf", "*-draft.gguf"]
FLAT = [
    ".gitattributes",
    "README.md",
    "imatrix-M.gguf",
    "M-BF16.gguf",
    "M-F16.gguf",
    "M-IQ4_XS.gguf",
    "M-Q4_K_M.gguf",
    "M-Q8_0.gguf",
    "M-UD-Q4_K_XL.gguf",
    "mmproj-F16.gguf",
    "mtp-M-Q8_0.gguf",
]
FOLDERS = [
    "Q4_K_M/M-Q4_K_M-00001-of-00002.gguf",
    "Q4_K_M/M-Q4_K_M-00002-of-00002.gguf",
    "Q6_K/M-Q6_K-00001-of-00003.gguf",
    "Q6_K/M-Q6_K-00003-of-00003.gguf",
]


def offered(names):
    return [Offered(name, 10) for name in names]


def chosen(names, tag="", file=""):
    found = choose_model(offered(names), ModelName("hf", "a/b", tag, file), SIDECARS)
    return [one.path for one in found]


@pytest.mark.parametrize(
    ("names", "tag", "wanted"),
    [
        (FLAT, "", ["M-Q4_K_M.gguf"]),
        (FLAT, "q8_0", ["M-Q8_0.gguf"]),
        (FLAT, "F16", ["M-F16.gguf"]),
        (FLAT, "Q4_K_XL", ["M-UD-Q4_K_XL.gguf"]),
        (FLAT, "UD-Q4_K_XL", ["M-UD-Q4_K_XL.gguf"]),
        (FLAT[:6], "", ["M-BF16.gguf"]),
        ([*FLAT[:6], "M-Q8_0.gguf"], "", ["M-Q8_0.gguf"]),
        (["x-q4_k_m.gguf"], "Q4_K_M", ["x-q4_k_m.gguf"]),
        (FOLDERS, "", FOLDERS[:2]),
        (["mtp-M.gguf", "mmproj-M.gguf"], "", ["mtp-M.gguf"]),
        (["eagle-draft.gguf", "M.gguf"], "", ["M.gguf"]),
    ],
)
def test_what_is_meant(names, tag, wanted):
    assert chosen(names, tag) == wanted


def test_a_file_by_its_name():
    assert chosen(FLAT, file="mmproj-F16.gguf") == ["mmproj-F16.gguf"]
    assert chosen(FOLDERS, file=FOLDERS[0]) == FOLDERS[:2]


@pytest.mark.parametrize(
    ("names", "tag", "said"),
    [
        (FLAT, "Q3_K_S", "the repository holds no such GGUF file"),
        (["mmproj-a.gguf"], "", "the repository holds no such GGUF file"),
        (["README.md", "model.safetensors"], "", "no GGUF file in the repository"),
        (FOLDERS, "Q6_K", "parts of the split model are missing"),
    ],
)
def test_what_there_is_not(names, tag, said):
    with pytest.raises(ModelFileError, match=said) as caught:
        chosen(names, tag)
    assert caught.value.fix


def test_names_that_mean_the_same_files_again():
    for names in (FLAT, FOLDERS):
        files = offered(names)
        for name, parts in name_models(files, "hf", "a/b", SIDECARS):
            if "Q6_K" not in parts[0].path:
                assert choose_model(files, name, SIDECARS) == parts
    named = {str(name)[7:]: [one.path for one in parts] for name, parts in
             name_models(offered(FLAT), "hf", "a/b", SIDECARS)}  # fmt: skip
    assert named["Q8_0"] == ["M-Q8_0.gguf"]
    assert named["mtp-M-Q8_0.gguf"] == ["mtp-M-Q8_0.gguf"]
