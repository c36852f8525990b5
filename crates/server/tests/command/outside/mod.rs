//! Helpers for tests of the binary from outside: a store in a folder, commands on it, and their results.

// Each test uses a part of it.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Deref;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

#[path = "../../../../store/tests/common/folder.rs"]
mod folder;

pub use folder::Folder;

pub fn tapetum(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapetum"));
    command.args(words);
    command
}

/// Standard output of a command that must have succeeded.
#[track_caller]
pub fn succeeded(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Standard error of a command that must have failed.
#[track_caller]
pub fn failed(output: Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

/// A folder with a store, and commands on it.
pub struct Scratch {
    folder: Folder,
    /// Adds the options of all commands: of these words, on the store in this folder.
    add_options: fn(&mut Command, &[&str], &Path),
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.folder
    }
}

impl Scratch {
    pub fn new(name: &str, add_options: fn(&mut Command, &[&str], &Path)) -> Scratch {
        Scratch { folder: Folder::new(name), add_options }
    }

    pub fn path(&self, name: &str) -> String {
        self.join(name).display().to_string()
    }

    /// The address of the socket in the folder.
    pub fn socket(&self) -> String {
        format!("unix:{}", self.path("socket"))
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = tapetum(words);
        (self.add_options)(&mut command, words, &self.join("data"));
        command
    }

    pub fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    #[track_caller]
    pub fn succeeds(&self, words: &[&str]) -> String {
        succeeded(self.run(words))
    }

    #[track_caller]
    pub fn fails(&self, words: &[&str]) -> String {
        failed(self.run(words))
    }

    /// Standard output and standard error of a command that must succeed.
    #[track_caller]
    pub fn asks(&self, words: &[&str]) -> (String, String) {
        self.asks_of(words, b"")
    }

    /// As [`Scratch::asks`], with this standard input.
    #[track_caller]
    pub fn asks_of(&self, words: &[&str], input: &[u8]) -> (String, String) {
        let mut command = self.command(words);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{words:?}: {told}");
        (String::from_utf8(output.stdout).unwrap(), told)
    }
}

pub struct Served {
    pub child: Child,
    /// The log until it served.
    pub log: String,
    pub rest: BufReader<ChildStderr>,
}

impl Served {
    pub fn start(command: &mut Command) -> Served {
        Served::start_when(command, "clients at")
    }

    /// Waits until the log says this.
    pub fn start_when(command: &mut Command, said: &str) -> Served {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (mut rest, mut log) = (BufReader::new(child.stderr.take().unwrap()), String::new());
        while !log.contains(said) {
            assert!(rest.read_line(&mut log).unwrap() > 0, "the server ended: {log}");
        }
        Served { child, log, rest }
    }

    /// Stops it like a user would. Returns the whole log.
    pub fn stop(mut self) -> String {
        stop(&mut self.child);
        self.rest.read_to_string(&mut self.log).unwrap();
        self.log
    }
}

pub fn stop(server: &mut Child) {
    let killed = Command::new("kill").arg("-TERM").arg(server.id().to_string()).status().unwrap();
    assert!(killed.success() && server.wait().unwrap().success());
}
