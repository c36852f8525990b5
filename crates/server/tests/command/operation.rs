//! The server as whoever operates it meets it: its settings, its log, what it tells a service manager, and what it refuses.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::outside::{Folder, Served, tapetum};

struct Scratch(Folder);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(Folder::new(&format!("operation-{name}")))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = tapetum(words);
        command.current_dir(&*self.0);
        command
    }

    #[track_caller]
    fn fails(&self, status: i32, command: &mut Command) -> String {
        let Output { status: ended, stderr, .. } = command.output().unwrap();
        assert_eq!(ended.code(), Some(status), "{}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stderr).unwrap()
    }

    /// Settings of a small server at a socket in the folder.
    fn write_settings(&self, more: &str) {
        let text = "memcached = [\"./socket\"]\ncapacity = \"64MiB\"\nmemory = \"32MiB\"\nthreads = 1\n";
        fs::write(self.path("tapetum.toml"), format!("{text}{more}")).unwrap();
    }

    /// All that is answered to this.
    fn ask(&self, request: &[u8]) -> Vec<u8> {
        let mut client = UnixStream::connect(self.path("socket")).unwrap();
        client.write_all(request).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        answer
    }
}

#[test]
fn a_service_manager_hears_when_it_is_ready_and_when_it_stops() {
    let scratch = Scratch::new("notify");
    scratch.write_settings("");
    let manager = UnixDatagram::bind(scratch.path("manager")).unwrap();
    let hear = || {
        let mut message = [0; 200];
        let length = manager.recv(&mut message).unwrap();
        String::from_utf8(message[..length].into()).unwrap()
    };
    let mut command = scratch.command(&["serve", "--config", "tapetum.toml"]);
    let server = Served::start(command.env("NOTIFY_SOCKET", scratch.path("manager")));
    let ready = hear();
    assert!(ready.starts_with("READY=1\nSTATUS=") && ready.contains("tapetum-data/drive"), "{ready}");
    server.stop();
    assert_eq!(hear(), "STOPPING=1");
}

#[test]
fn settings_of_the_file_give_way_to_variables_and_those_to_the_command_line() {
    let scratch = Scratch::new("settings");
    scratch.write_settings("data = \"of-file\"\nsync = \"no\"\nfull = \"evict\"\n");
    let mut command = scratch.command(&["serve", "--config", "tapetum.toml", "--full", "error"]);
    let log = Served::start(command.env("TAPETUM_SYNC", "everysec")).stop();
    assert!(log.contains("reserved 64 MiB at of-file/drive"), "{log}");
    assert!(log.contains("(--sync everysec)") && log.contains("(--full error)"), "{log}");
    // Other commands find the store by the same settings.
    let put = scratch.command(&["put", "k", "v", "--config", "tapetum.toml"]).status().unwrap();
    let got = scratch.command(&["get", "k"]).env("TAPETUM_CONFIG", "tapetum.toml").output().unwrap();
    assert!(put.success() && got.stdout == b"v", "{got:?}");
    let error =
        scratch.fails(1, scratch.command(&["get", "k", "--config", "tapetum.toml"]).env("TAPETUM_DATA", "elsewhere"));
    assert!(error.contains("no store at elsewhere/drive"), "{error}");
}

#[test]
fn what_is_wrong_with_a_setting_is_told_with_its_place() {
    let scratch = Scratch::new("wrong");
    let serve = || scratch.command(&["serve", "--config", "tapetum.toml"]);
    scratch.write_settings("tiers = \"8MiB\"\n");
    let error = scratch.fails(2, &mut serve());
    assert!(error.contains("tapetum.toml, line 5: ") && error.contains("did you mean \"tier\"?"), "{error}");
    scratch.write_settings("tier = \"lots\"\n");
    let error = scratch.fails(2, &mut serve());
    assert!(error.contains("tapetum.toml, line 5") && error.contains("\"lots\" is not a size"), "{error}");
    scratch.write_settings("");
    let error = scratch.fails(2, serve().env("TAPETUM_BACKLOG", "many"));
    assert!(error.contains("the variable TAPETUM_BACKLOG") && error.contains("'many'"), "{error}");
    let error = scratch.fails(2, serve().env("TAPETUM_SINC", "always"));
    assert!(error.contains("did you mean TAPETUM_SYNC?"), "{error}");
    let error = scratch.fails(1, serve().env("TAPETUM_TIER", "1GiB"));
    assert!(error.contains("--tier 1GiB does not fit in --memory 32MiB"), "{error}");
    assert!(!scratch.path("tapetum-data").exists());
}

#[test]
fn a_flush_that_is_not_allowed_deletes_nothing() {
    let scratch = Scratch::new("flush");
    scratch.write_settings("no-flush-all = true\n");
    let server = Served::start(&mut scratch.command(&["serve", "--config", "tapetum.toml"]));
    let answer = scratch.ask(b"set k 0 0 1\r\nv\r\nflush_all\r\nflush_all 5 noreply\r\nget k\r\nquit\r\n");
    let kept = "STORED\r\nCLIENT_ERROR flush_all not allowed\r\nVALUE k 0 1\r\nv\r\nEND\r\n";
    assert_eq!(String::from_utf8_lossy(&answer), kept);
    // In binary: flush, then quit.
    let mut request = [0; 48];
    (request[0], request[1], request[24], request[25]) = (0x80, 0x08, 0x80, 0x07);
    let answer = scratch.ask(&request);
    assert_eq!((answer[0], answer[1], &answer[6..8]), (0x81, 0x08, &[0x00, 0x20][..]));
    let answer = String::from_utf8(scratch.ask(b"stats settings\r\nget k\r\nquit\r\n")).unwrap();
    assert!(answer.contains("flush_enabled no\r\n") && answer.ends_with("VALUE k 0 1\r\nv\r\nEND\r\n"), "{answer}");
    server.stop();
}

#[test]
fn the_manual_and_the_completions_know_every_command_and_option() {
    let scratch = Scratch::new("help");
    let said = |words: &[&str]| {
        let output = scratch.command(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(said(&["help"]).contains("Serve clients"));
    assert!(said(&["help", "keyspace", "create"]).contains("--block-device"));
    let page = said(&["help", "serve", "--man"]);
    assert!(page.contains(".TH tapetum-serve 1") && page.contains("\\-\\-drive\\-threads"), "{page}");
    assert!(said(&["help", "--man"]).contains(".TH tapetum 1"));
    for shell in ["bash", "zsh", "fish"] {
        let script = said(&["help", "--completions", shell]);
        assert!(script.contains("drive-threads") && script.contains("keyspace"), "{shell}");
    }
    let error = scratch.fails(2, &mut scratch.command(&["help", "keyspace", "creat"]));
    assert!(error.contains("did you mean \"create\"?"), "{error}");
}

#[test]
fn the_settings_that_are_packaged_are_taken() {
    let settings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/tapetum.toml");
    // All of it, with what is commented out there and needs no other file.
    let mut text = fs::read_to_string(settings).unwrap();
    for name in ["capacity", "metrics", "console", "sync", "full", "no-flush"] {
        text = text.replace(&format!("\n# {name}"), &format!("\n{name}"));
    }
    for (packaged, small) in [
        ("/var/lib/tapetum", "data"),
        ("10GiB", "64MiB"),
        ("256MiB", "32MiB"),
        (":11211", ":0"),
        (":9150", ":0"),
        (":9180", ":0"),
    ] {
        text = text.replace(packaged, small);
    }
    let scratch = Scratch::new("packaged");
    fs::write(scratch.path("tapetum.toml"), text).unwrap();
    let log = Served::start(&mut scratch.command(&["serve", "--config", "tapetum.toml"])).stop();
    assert!(
        log.contains("reserved 64 MiB at data/drive") && log.contains("the console is at http://127.0.0.1:"),
        "{log}"
    );
}
