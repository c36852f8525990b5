//! Standard output that cannot be written: a full one is an error, and a closed one is not.

use std::fs::OpenOptions;
use std::process::{Output, Stdio};

use crate::outside::{Folder, failed, succeeded, tapetum};

const OF_STORE: [&[&str]; 14] = [
    &["get", "key"],
    &["list"],
    &["dump"],
    &["dump", "--skip-bad"],
    &["stats"],
    &["stats", "--json"],
    &["inspect"],
    &["inspect", "--map"],
    &["inspect", "key"],
    &["check"],
    &["repair"],
    &["scan", "default", "--fields", "key: k string; value: v string", "--select", "k"],
    &["keyspace", "list"],
    &["pipeline", "run", "sha256", "--key", "key", "--stats"],
];
const OF_NO_STORE: [&[&str]; 6] = [
    &["--help"],
    &["--version"],
    &["help", "get"],
    &["help", "--completions", "bash"],
    &["programs"],
    &["generate", "papers", "--table", "venues"],
];

struct Scratch(Folder);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let scratch = Scratch(Folder::new(&format!("output-{name}")));
        let words = ["put", "key", "value", "--create", "--capacity", "64MiB"];
        succeeded(scratch.run(&words, Stdio::null(), Stdio::piped()));
        scratch
    }

    fn run(&self, words: &[&str], out: impl Into<Stdio>, error: impl Into<Stdio>) -> Output {
        let mut command = tapetum(words);
        if !OF_NO_STORE.contains(&words) {
            command.args(["--memory", "32MiB", "--data"]).arg(self.0.join("data"));
        }
        command.stdout(out).stderr(error).output().unwrap()
    }
}

fn full() -> std::fs::File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

#[test]
fn an_output_that_is_full_is_named_in_an_error() {
    let scratch = Scratch::new("full");
    for words in OF_STORE.into_iter().chain(OF_NO_STORE).chain([&["keyspace", "create", "a"][..]]) {
        let error = failed(scratch.run(words, full(), Stdio::piped()));
        let last = error.lines().last().unwrap();
        assert!(last.starts_with("error: cannot write to standard output: No space left"), "{words:?}: {error}");
    }
    // If the error cannot be printed, the exit status reports it.
    let output = scratch.run(&["keyspace", "create", "a"], Stdio::null(), full());
    assert_eq!(output.status.code(), Some(1));
    let output = scratch.run(&["pipeline", "run", "sha256", "--key", "key", "--stats"], Stdio::null(), full());
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let scratch = Scratch::new("gone");
    for words in OF_STORE.into_iter().chain(OF_NO_STORE) {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = scratch.run(words, writer, Stdio::piped());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !error.contains("error"), "{words:?}: {error}");
    }
}
