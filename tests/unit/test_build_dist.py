"""Fetching and dist/: what is verified is kept, what is not is thrown away; the wheel is whole and repeatable."""

import base64
import hashlib
import io
import json
import os
import zipfile

import pytest

from tools import dist, env, fetch, pins


def test_wheel_holds_every_module_and_shader_of_the_tree():
    names = set(zipfile.ZipFile(io.BytesIO(dist.jird_wheel())).namelist())
    modules = {f"jird/{p.relative_to(env.ROOT / 'py/jird').as_posix()}" for p in (env.ROOT / "py/jird").rglob("*.py")}
    shaders = {f"jird/shaders/{p.relative_to(env.ROOT / 'web/shaders').as_posix()}" for p in (env.ROOT / "web/shaders").rglob("*.wgsl")}
    assert modules and shaders and modules | shaders <= names


def test_wheel_record_names_every_file_with_its_hash():
    archive = zipfile.ZipFile(io.BytesIO(dist.jird_wheel()))
    record = f"jird-{env.version()}.dist-info/RECORD"
    rows = [line.rsplit(",", 2) for line in archive.read(record).decode().splitlines()]
    assert {row[0] for row in rows} == set(archive.namelist())
    for name, digest, size in rows:
        if name != record:
            data = archive.read(name)
            want = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, int(size)) == (want, len(data))


def test_equal_sources_give_equal_wheels():
    assert dist.jird_wheel() == dist.jird_wheel()


def test_link_is_the_same_file_and_follows_a_new_source(tmp_path):
    one, two, target = tmp_path / "one", tmp_path / "two", tmp_path / "models" / "w"
    one.write_bytes(b"1")
    two.write_bytes(b"2")
    dist.link(one, target)
    assert target.samefile(one)
    dist.link(two, target)
    assert target.samefile(two) and one.read_bytes() == b"1"
    assert [path.name for path in target.parent.iterdir()] == ["w"]


def test_file_is_hashed_again_when_it_changed(tmp_path):
    path = tmp_path / "w"
    path.write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    assert fetch.is_verified(path, digest) and fetch.is_verified(path, digest)
    path.write_bytes(b"weighty")
    os.utime(path, ns=(1, 1))
    assert not fetch.is_verified(path, digest)
    assert not fetch.is_verified(tmp_path / "none", digest)


def test_wrong_bytes_are_thrown_away_and_named(tmp_path):
    part, target = tmp_path / "part", tmp_path / "kept"
    part.write_bytes(b"not it")
    with pytest.raises(env.BuildError, match="some part: sha256 is .* expected 00"):
        fetch.keep(part, target, "00", "some part")
    assert not target.exists()


def test_npm_packages_are_locked_exactly_and_without_addresses():
    lock = json.loads((env.ROOT / "package-lock.json").read_text())
    wanted = json.loads((env.ROOT / "package.json").read_text())["dependencies"]
    for package in (pins.PYODIDE, *(package for package, _ in pins.NPM_MODULES.values())):
        version, integrity = fetch.locked(package)
        assert wanted[package] == version and integrity.startswith("sha512-")
    assert not any("resolved" in entry for entry in lock["packages"].values())


def test_requirements_are_pinned_exactly():
    assert all("==" in line for line in (*pins.RUN_REQUIREMENTS, *pins.TEST_REQUIREMENTS, pins.NODE_REQUIREMENT))
    assert set(pins.RUN_REQUIREMENTS) <= set(pins.TEST_REQUIREMENTS)


def test_closed_network_is_a_sentence_that_names_the_part(tmp_path, monkeypatch):
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    with pytest.raises(env.BuildError, match=r"@huggingface/jinja@0\.5\.11 could not be had from npm \(no connection: ECONNREFUSED\)\."):
        fetch.npm_tarball("@huggingface/jinja", tmp_path)
    assert list(tmp_path.glob("*.tgz")) == []


@pytest.mark.parametrize(
    "output, line",
    [
        (
            "WARNING: Retrying: Failed to establish a new connection\nERROR: No matching distribution",
            "no connection: Failed to establish a new connection",
        ),
        ("npm error code E404\nnpm error 404 Not Found", "npm error 404 Not Found"),
        ("ERROR: bad thing\nnote: more", "ERROR: bad thing"),
        ("", "no message"),
    ],
)
def test_error_line_says_what_went_wrong(output, line):
    assert env.error_line(output) == line
