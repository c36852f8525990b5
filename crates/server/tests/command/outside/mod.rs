//! Helpers for tests of the binary from outside: a folder for its data, and the result of a command.

// Each test uses a part of it.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read};
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
