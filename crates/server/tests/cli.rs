//! The binary from outside: commands without a server, and data directories that are not what they should be. After each
//! refusal the data are what they were.

#![allow(clippy::disallowed_methods)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tapetum-cli-{name}-{}", std::process::id()));
        // Left by an earlier process of the same number, if at all.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapetum"));
        command.args(words).arg("--data").arg(self.data());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    #[track_caller]
    fn succeeds(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn fails(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays behind is in the temporary directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

const SMALL: [&str; 4] = ["--capacity", "128MiB", "--memory", "32MiB"];

fn small<'a>(words: &[&'a str]) -> Vec<&'a str> {
    words.iter().chain(&SMALL).copied().collect()
}

/// Starts a server on a socket in the scratch directory, and waits until it serves.
fn serve(scratch: &Scratch) -> Child {
    let socket = format!("unix:{}", scratch.0.join("socket").display());
    let mut command = scratch.command(&small(&["serve", "--threads", "1", "--memcached", &socket]));
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let ready = lines.by_ref().map(Result::unwrap).find(|line| line.contains("to memcached clients at"));
    assert!(ready.is_some(), "the server ended");
    child
}

fn bytes_of(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}

#[test]
fn puts_gets_and_deletes_without_a_server() {
    let scratch = Scratch::new("embedded");
    scratch.succeeds(&small(&["put", "greeting", "hello"]));
    assert_eq!(scratch.succeeds(&["get", "greeting", "--memory", "32MiB"]), "hello");
    let mut child = scratch.command(&small(&["put", "piped", "-"])).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"from\0a pipe").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(scratch.succeeds(&small(&["get", "piped"])), "from\0a pipe");
    scratch.succeeds(&small(&["delete", "greeting"]));
    assert!(scratch.fails(&small(&["get", "greeting"])).contains("no key"));
    assert!(scratch.fails(&small(&["delete", "greeting"])).contains("no key"));
    let stats = scratch.succeeds(&small(&["stats", "--json"]));
    assert!(stats.contains("\"flash_limit_bytes\": 134"), "{stats}");
    assert!(scratch.succeeds(&small(&["check"])).contains("no damage"));
}

#[test]
fn there_must_be_a_store_to_read_one() {
    let scratch = Scratch::new("absent");
    for words in [&["get", "k"][..], &["delete", "k"], &["stats"], &["check"]] {
        let error = scratch.fails(words);
        assert!(error.contains("there is no store at") && error.contains("--data"), "{error}");
    }
    assert!(!scratch.data().exists());
}

#[test]
fn a_running_server_keeps_others_out_and_stops_cleanly() {
    let scratch = Scratch::new("locked");
    let mut server = serve(&scratch);
    let socket = format!("unix:{}", scratch.0.join("socket").display());
    let error = scratch.fails(&small(&["get", "k"]));
    assert!(error.contains("is in use") && error.contains("client"), "{error}");
    let stats = scratch.succeeds(&["stats", "--json", "--memcached", &socket]);
    assert!(stats.contains("\"threads\": 1") && stats.contains("\"local_to_host_bytes\": "), "{stats}");
    let killed = Command::new("kill").arg("-TERM").arg(server.id().to_string()).status().unwrap();
    assert!(killed.success());
    assert!(server.wait().unwrap().success());
    assert!(scratch.succeeds(&small(&["check"])).contains("no damage"));
    let error = scratch.fails(&["stats", "--memcached", &socket]);
    assert!(error.contains("check that the server runs"), "{error}");
}

#[test]
fn a_foreign_directory_is_left_alone() {
    let scratch = Scratch::new("foreign");
    fs::create_dir_all(scratch.data()).unwrap();
    fs::write(scratch.data().join("letter.txt"), b"dear").unwrap();
    let error = scratch.fails(&small(&["put", "k", "v"]));
    assert!(error.contains("letter.txt") && error.contains("nothing was written"), "{error}");
    assert_eq!(fs::read_dir(scratch.data()).unwrap().count(), 1);
    // A file that has the right name is no store yet.
    let drive = scratch.data().join("drive");
    fs::write(&drive, vec![7; 1 << 20]).unwrap();
    let error = scratch.fails(&small(&["put", "k", "v"]));
    assert!(error.contains("no tapetum store here") && error.contains("nothing was written"), "{error}");
    assert_eq!(bytes_of(&drive), vec![7; 1 << 20]);
}

#[test]
fn a_truncated_store_is_refused_unchanged() {
    let scratch = Scratch::new("truncated");
    scratch.succeeds(&small(&["put", "k", "v"]));
    let drive = scratch.data().join("drive");
    fs::File::options().write(true).open(&drive).unwrap().set_len(64 << 20).unwrap();
    let before = bytes_of(&drive);
    let error = scratch.fails(&small(&["get", "k"]));
    assert!(error.contains("cut short"), "{error}");
    assert!(bytes_of(&drive) == before);
}

#[test]
fn a_newer_store_is_refused_unchanged() {
    let scratch = Scratch::new("newer");
    scratch.succeeds(&small(&["put", "k", "v"]));
    let drive = scratch.data().join("drive");
    let mut bytes = bytes_of(&drive);
    // The version stands behind the magic, in both superblocks.
    bytes[8..12].copy_from_slice(&99u32.to_le_bytes());
    bytes[4096 + 8..4096 + 12].copy_from_slice(&99u32.to_le_bytes());
    fs::write(&drive, &bytes).unwrap();
    let error = scratch.fails(&small(&["get", "k"]));
    assert!(error.contains("99") && error.contains("newer"), "{error}");
    assert!(bytes_of(&drive) == bytes);
}

#[test]
fn too_little_room_leaves_nothing_behind() {
    let scratch = Scratch::new("full");
    let error = scratch.fails(&["put", "k", "v", "--capacity", "4000TiB"]);
    assert!(error.contains("--capacity") || error.contains("space"), "{error}");
    assert_eq!(fs::read_dir(scratch.data()).unwrap().count(), 0);
}

#[test]
fn an_interrupted_creation_is_begun_again() {
    let scratch = Scratch::new("interrupted");
    fs::create_dir_all(scratch.data()).unwrap();
    fs::write(scratch.data().join("drive.unfinished"), vec![1; 8192]).unwrap();
    scratch.succeeds(&small(&["put", "k", "v"]));
    assert_eq!(scratch.succeeds(&small(&["get", "k"])), "v");
    assert!(!scratch.data().join("drive.unfinished").exists());
}

#[test]
fn a_drive_of_its_own_may_lie_anywhere() {
    let scratch = Scratch::new("drive");
    let drive = scratch.0.join("elsewhere.drive");
    let drive = drive.to_str().unwrap();
    scratch.succeeds(&small(&["put", "k", "v", "--drive", drive]));
    assert_eq!(scratch.succeeds(&small(&["get", "k", "--drive", drive])), "v");
    assert!(!scratch.data().exists());
}
