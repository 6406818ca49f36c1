"""Split sets: opened from any member, and every way in which the files can fail to belong together."""

import shutil

import numpy as np
import pytest

from models.errors import GGUFError
from models.gguf import GGUFModel
from tests.tiny_gguf import Typed, f32, write_gguf, write_split


def parts(seed: int = 0, sizes: tuple[int, ...] = (2, 3, 1)):
    rng = np.random.default_rng(seed)
    numbers = iter(range(100))
    return [[f32(f"t{next(numbers)}", rng.standard_normal((2, 8)).astype(np.float32)) for _ in range(n)] for n in sizes]


@pytest.fixture
def split_set(tmp_path):
    return write_split(tmp_path / "set", "m", {"general.name": "whole"}, parts())


@pytest.mark.parametrize("member", [0, 1, 2])
def test_any_member_opens_the_whole_set(split_set, member):
    with GGUFModel.open(split_set[member]) as model:
        assert model.paths == split_set
        assert model.metadata["general.name"] == "whole"
        assert list(model.tensors) == [f"t{i}" for i in range(6)]
        assert [t.file_index for t in model.tensors.values()] == [0, 0, 1, 1, 1, 2]
        for part in parts():
            for tensor in part:
                assert model.read(tensor.name).tobytes() == tensor.data


def test_a_first_part_without_tensors_is_fine(tmp_path):
    paths = write_split(tmp_path, "m", {"general.name": "whole"}, [[], *parts()])
    with GGUFModel.open(paths[2]) as model:
        assert len(model.tensors) == 6


@pytest.mark.parametrize("kind", ["u16", "u32", "i32", "u64"])
def test_integer_type_of_the_keys_does_not_matter(tmp_path, kind):
    for number, part in enumerate(parts()):
        keys = {"split.no": number, "split.count": 3, "split.tensors.count": 6}
        write_gguf(tmp_path / f"m-{number + 1:05d}-of-00003.gguf", {k: Typed(kind, v) for k, v in keys.items()}, part)
    with GGUFModel.open(tmp_path / "m-00002-of-00003.gguf") as model:
        assert len(model.tensors) == 6


@pytest.mark.parametrize("value", ["3", 3.0, Typed("i32", -1), True])
def test_other_types_of_the_keys_are_refused(tmp_path, value):
    path = write_gguf(tmp_path / "m-00001-of-00003.gguf", {"split.count": value, "split.no": 0})
    with pytest.raises(GGUFError, match=r"split\.count must be a whole number"):
        GGUFModel.open(path)


def test_all_missing_members_are_listed(split_set):
    split_set[0].unlink()
    split_set[2].unlink()
    with pytest.raises(GGUFError, match=r"2 of 3 parts are missing .*m-00001-of-00003\.gguf, m-00003-of-00003\.gguf$"):
        GGUFModel.open(split_set[1])


def test_a_missing_first_member_that_is_asked_for_is_a_missing_file(split_set):
    split_set[0].unlink()
    with pytest.raises(Exception, match="no such file"):
        GGUFModel.open(split_set[0])


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_swapped_members_are_refused(split_set, opened):
    second, third = split_set[1].read_bytes(), split_set[2].read_bytes()
    split_set[1].write_bytes(third)
    split_set[2].write_bytes(second)
    with pytest.raises(GGUFError, match=r"named as part [23] but split\.no is"):
        GGUFModel.open(split_set[opened])


def test_a_member_of_another_model_is_refused_by_its_tensor_count(split_set, tmp_path):
    other = write_split(tmp_path / "other", "m", {}, parts(1, (2, 3, 2)))
    shutil.copy(other[2], split_set[2])
    with pytest.raises(GGUFError, match=r"m-00003.*another model than m-00001-of-00003.gguf \(split\.tensors\.count"):
        GGUFModel.open(split_set[0])


def test_a_member_with_too_few_tensors_is_refused(split_set, tmp_path):
    other = write_split(tmp_path / "other", "m", {}, parts(1, (1, 1, 4)))
    shutil.copy(other[1], split_set[1])
    with pytest.raises(GGUFError, match="declares 6 tensors, its 3 files hold 4"):
        GGUFModel.open(split_set[0])


@pytest.mark.parametrize("key", ["general.architecture", "general.name", "pearl.set_id"])
@pytest.mark.parametrize("other", ["model 1", 7, Typed("u32", [1, 2]), ["model 0"]], ids=str)
def test_a_member_that_says_it_is_of_another_model_is_refused(tmp_path, key, other):
    for number, part in enumerate(parts()):
        keys = {"split.no": number, "split.count": 3, "split.tensors.count": 6, key: "model 0"}
        write_gguf(tmp_path / f"m-{number + 1:05d}-of-00003.gguf", keys | ({key: other} if number == 2 else {}), part)
    with pytest.raises(GGUFError, match=rf"m-00003.*another model than m-00001-of-00003\.gguf \({key} differs"):
        GGUFModel.open(tmp_path / "m-00001-of-00003.gguf")


def test_a_tensor_in_two_members_is_refused(tmp_path):
    same = parts()[0]
    paths = write_split(tmp_path, "m", {}, [same, same])
    with pytest.raises(GGUFError, match=r"tensor 't0' is also in m-00001-of-00002\.gguf"):
        GGUFModel.open(paths[0])


@pytest.mark.parametrize("name", ["joined.gguf", "m-00001-of-00003.gguf"])
def test_members_joined_with_cat_are_recognised(split_set, tmp_path, name):
    joined = tmp_path / name
    joined.write_bytes(b"".join(path.read_bytes() for path in split_set))
    with pytest.raises(GGUFError, match=r"concatenated split.*use the parts"):
        GGUFModel.open(joined)


def test_a_wrong_count_is_refused(tmp_path):
    paths = write_split(tmp_path, "m", {}, parts())
    for index, path in enumerate(paths):
        path.rename(tmp_path / f"m-{index + 1:05d}-of-00004.gguf")
    with pytest.raises(GGUFError, match=r"the name says 4 parts, split\.count says 3"):
        GGUFModel.open(tmp_path / "m-00001-of-00004.gguf")


def test_a_renamed_member_is_refused_with_its_name(split_set, tmp_path):
    lone = split_set[1].rename(tmp_path / "mine.gguf")
    with pytest.raises(GGUFError, match=r"part 2 of a set of 3.*-00002-of-00003\.gguf"):
        GGUFModel.open(lone)


def test_a_damaged_member_is_named(split_set):
    split_set[2].write_bytes(split_set[2].read_bytes()[:-4])
    with pytest.raises(GGUFError, match=r"m-00003-of-00003\.gguf: the file is cut short: tensor 't5'"):
        GGUFModel.open(split_set[0])


def test_a_lone_file_named_like_a_member_is_a_file_of_its_own(tmp_path):
    path = write_gguf(tmp_path / "x-00001-of-00003.gguf", {"general.name": "lone"}, parts()[0])
    with GGUFModel.open(path) as model:
        assert (model.paths, len(model.tensors)) == ([path], 2)


@pytest.mark.parametrize("count", [0, 1])
def test_a_set_of_one_may_have_any_name(tmp_path, count):
    path = write_gguf(tmp_path / "x.gguf", {"split.count": count, "split.no": 0}, parts()[0])
    with GGUFModel.open(path) as model:
        assert len(model.tensors) == 2


def test_a_folder_named_like_a_member_does_not_confuse(tmp_path):
    paths = write_split(tmp_path / "out-00002-of-00007.gguf", "m", {}, parts())
    with GGUFModel.open(paths[1]) as model:
        assert model.paths == paths
