//! Tests of the binary from outside: commands without a server, and unusual data directories. After each refusal the data is unchanged.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::outside::{Scratch, Served, failed, stop, tapetum};

fn new_scratch(name: &str) -> Scratch {
    Scratch::new(&format!("cli-{name}"), |command, words, data| {
        let asks_elsewhere = words.contains(&"--drive") || words[0] != "serve" && words.contains(&"--memcached");
        if !asks_elsewhere {
            command.arg("--data").arg(data);
        }
    })
}

/// Adds the options with which a small store is opened, and made by commands that make one.
fn small<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let sizes: &[&str] = match words[0] {
        "serve" => &["--memory", "32MiB", "--capacity", "128MiB"],
        "put" | "load" => &["--memory", "32MiB", "--capacity", "128MiB", "--create"],
        _ => &["--memory", "32MiB"],
    };
    words.iter().chain(sizes).copied().collect()
}

/// Starts a server on a socket in the scratch directory, and waits until it serves.
fn serve(scratch: &Scratch, options: &[&str]) -> Served {
    let socket = scratch.socket();
    let words = ["serve", "--threads", "1", "--memcached", &socket];
    Served::start(&mut scratch.command(&small(&[&words, options].concat())))
}

fn bytes_of(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}

#[test]
fn puts_gets_and_deletes_without_a_server() {
    let scratch = new_scratch("embedded");
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
fn a_store_is_made_with_as_much_memory_as_a_server_of_it_needs() {
    let scratch = new_scratch("least-memory");
    let made = |memory| ["keyspace", "create", "a", "--capacity", "64MiB", "--memory", memory];
    let put = ["put", "k", "v", "--create", "--capacity", "64MiB", "--memory", "16MiB"];
    let serve = ["serve", "--memcached", "127.0.0.1:0", "--capacity", "64MiB", "--memory", "16MiB"];
    for words in [&made("16MiB")[..], &put, &serve] {
        let error = scratch.fails(words);
        assert!(error.contains("--memory 16MiB is too little") && error.contains("give 18MiB or more"), "{error}");
    }
    assert!(!scratch.join("data").join("drive").exists());
    scratch.succeeds(&made("18MiB"));
    // A command that only reads needs less.
    assert_eq!(scratch.succeeds(&["list", "--memory", "16MiB"]), "");
}

#[test]
fn commands_take_as_much_memory_as_the_store_needs() {
    let scratch = new_scratch("store-memory");
    let large = ["--capacity", "1GiB", "--memory", "512MiB", "--write-buffer", "64MiB"];
    let socket = scratch.socket();
    let words = ["serve", "--threads", "1", "--memcached", &socket];
    Served::start(&mut scratch.command(&[&words[..], &large].concat())).stop();
    let error = scratch.fails(&["get", "k", "--memory", "256MiB"]);
    assert!(error.contains("--memory 256MiB is too little"), "{error}");
    scratch.succeeds(&["put", "k", "v"]);
    assert_eq!(scratch.succeeds(&["get", "k"]), "v");
    scratch.succeeds(&["stats"]);
}

#[test]
fn a_server_of_block_devices_alone_opens_no_door_for_memcached() {
    let scratch = new_scratch("devices-alone");
    scratch.succeeds(&small(&["keyspace", "create", "disk", "--block-device", "1MiB", "--capacity", "128MiB"]));
    for (more, told) in [
        (&["--memcached", "none", "--memcached", "1"][..], "beside another"),
        (&["--memcached", "none", "--nbd", "127.0.0.1:0", "--udp"], "leave one of them out"),
        (&["--memcached", "none", "--nbd", "127.0.0.1:0", "--keyspace", "default"], "leave one of them out"),
    ] {
        let error = scratch.fails(&small(&[&["serve"][..], more].concat()));
        assert!(error.contains(told), "{more:?}: {error}");
    }
    let socket = scratch.join("disk.sock");
    let door = format!("unix:{}", socket.display());
    let words = ["serve", "--threads", "1", "--memcached", "none", "--nbd", &door];
    let server = Served::start(&mut scratch.command(&small(&words)));
    assert!(fs::exists(&socket).unwrap());
    assert!(!server.stop().contains("memcached"));
}

#[test]
fn without_a_command_there_is_help_and_nothing_else() {
    let scratch = new_scratch("alone");
    let alone = |words: &[&str]| {
        let output = tapetum(words).current_dir(&*scratch).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let help = alone(&[]);
    assert!(help.contains("Usage: tapetum [OPTIONS] <COMMAND>") && help.contains("Serve clients"), "{help}");
    let tip = alone(&["--memory", "64MiB"]);
    assert!(tip.contains("unexpected argument '--memory'") && tip.contains("tapetum serve"), "{tip}");
    assert_eq!(fs::read_dir(&*scratch).unwrap().count(), 0);
}

#[test]
fn a_server_says_what_it_restored_and_what_it_cannot_take() {
    let scratch = new_scratch("restored");
    let items = scratch.join("items.tsv");
    let lines: String = (0..4_321).map(|number| format!("key{number}\tvalue\n")).collect();
    fs::write(&items, lines).unwrap();
    scratch.succeeds(&small(&["load", items.to_str().unwrap()]));
    let log = serve(&scratch, &["--item-size", "16MiB"]).stop();
    assert!(log.contains("restored 4,321 items"), "{log}");
    // An eighth of the memory, and a sixteenth of the capacity.
    for advice in ["values are limited to 3.59MiB", "--memory 143MiB or more", "--capacity 257MiB or more"] {
        assert!(log.contains(advice), "{advice} is not in {log}");
    }
    let message = scratch.fails(&["serve", "--memory", "1000TiB"]);
    assert!(
        message.contains("--memory 1000TiB is more than this machine has") && message.contains("give less"),
        "{message}"
    );
    let message = scratch.fails(&["check", "--memory", "100TiB"]);
    assert!(message.contains("--memory 100TiB is more than this machine has"), "{message}");
}

#[test]
fn there_must_be_a_store_to_read_one() {
    let scratch = new_scratch("absent");
    for words in [&["get", "k"][..], &["delete", "k"], &["stats"], &["check"], &["list"], &["dump"], &["inspect"]] {
        let error = scratch.fails(words);
        assert!(error.contains("there is no store at") && error.contains("--data"), "{error}");
    }
    assert!(!scratch.join("data").exists());
}

#[test]
fn a_mistyped_path_is_no_reason_to_make_a_store() {
    let scratch = new_scratch("mistyped");
    for words in [&["put", "k", "v"][..], &["load", "/dev/null"]] {
        let error = scratch.fails(words);
        assert!(error.contains("there is no store at") && error.contains("--create"), "{error}");
        assert!(!scratch.join("data").exists());
    }
    scratch.succeeds(&small(&["put", "k", "v"]));
    assert_eq!(scratch.succeeds(&["put", "k", "other"]), "");
    assert_eq!(scratch.succeeds(&["get", "k"]), "other");
}

#[test]
fn a_quiet_command_says_only_what_failed_and_a_verbose_one_more() {
    let scratch = new_scratch("quiet");
    let items = scratch.join("items.tsv");
    fs::write(&items, "a\t1\n").unwrap();
    let load = small(&["load", items.to_str().unwrap()]);
    let told = |more: &[&str]| String::from_utf8(scratch.run(&[&load[..], more].concat()).stderr).unwrap();
    assert!(told(&["-v"]).contains("INFO"));
    assert_eq!(told(&[]), "1 item stored\n");
    assert_eq!(told(&["-q"]), "");
    assert!(told(&["-q", "--keyspace", "none"]).contains("no keyspace \"none\""));
    assert!(told(&["--keyspace", "defalt"]).contains("did you mean \"default\"?"));
}

#[test]
fn a_running_server_has_the_store_for_itself_and_stops_cleanly() {
    let scratch = new_scratch("locked");
    let server = serve(&scratch, &[]);
    let socket = scratch.socket();
    let error = scratch.fails(&small(&["repair"]));
    assert!(error.contains("is in use") && error.contains("stop the server first"), "{error}");
    let stats = scratch.succeeds(&["stats", "--json", "--memcached", &socket]);
    assert!(stats.contains("\"threads\": 1") && stats.contains("\"local_to_host_bytes\": "), "{stats}");
    server.stop();
    assert!(scratch.succeeds(&small(&["check"])).contains("no damage"));
    let error = scratch.fails(&["stats", "--memcached", &socket]);
    assert!(error.contains("check that the server runs"), "{error}");
}

#[test]
fn the_drive_may_have_threads_of_its_own() {
    const ITEMS: usize = 600;
    let scratch = new_scratch("drive-threads");
    let path = scratch.join("socket");
    // Incompressible digits, so that the write buffers are flushed.
    let digits = |number: usize| {
        let step = |word: &u64| Some(word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        std::iter::successors(Some(number as u64 + 7), step).map(|word| format!("{:05}", (word >> 33) % 100_000))
    };
    let value = |number: usize| digits(number).skip(3).take(200).collect::<String>();
    // Each way to end: killed with unsaved state, and stopped.
    for (round, end) in ["-KILL", "-TERM"].into_iter().enumerate() {
        let _ = fs::remove_file(&path);
        let options = ["--drive-threads", "2", "--write-buffer", "64KiB", "--sync", "no"];
        let mut server = serve(&scratch, &options).child;
        let socket = UnixStream::connect(&path).unwrap();
        let mut lines = BufReader::new(socket.try_clone().unwrap());
        let mut line = || {
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            line
        };
        for number in 0..ITEMS {
            let value = value(number + round);
            (&socket).write_all(format!("set {number} 0 0 {}\r\n{value}\r\n", value.len()).as_bytes()).unwrap();
            assert_eq!(line(), "STORED\r\n");
        }
        for number in 0..ITEMS {
            (&socket).write_all(format!("get {number}\r\n").as_bytes()).unwrap();
            assert_eq!(line(), format!("VALUE {number} 0 1000\r\n"));
            assert_eq!((line(), line()), (value(number + round) + "\r\n", "END\r\n".into()));
        }
        let stats = scratch.succeeds(&["stats", "--json", "--memcached", &format!("unix:{}", path.display())]);
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        assert!(stats["get_from_flash"].as_u64().unwrap() > 0, "{stats}");
        assert!(stats["cpu_drive"].as_f64().unwrap() > 0.0 && stats["cpu_host"].as_f64().unwrap() > 0.0, "{stats}");
        let killed = Command::new("kill").arg(end).arg(server.id().to_string()).status().unwrap();
        assert!(killed.success());
        assert_eq!(server.wait().unwrap().success(), end == "-TERM");
    }
    assert!(scratch.succeeds(&small(&["check"])).contains("no damage"));
    assert_eq!(scratch.succeeds(&["get", "7", "--memory", "32MiB"]), value(8));
}

#[test]
fn a_foreign_directory_is_left_alone() {
    let scratch = new_scratch("foreign");
    fs::create_dir_all(scratch.join("data")).unwrap();
    fs::write(scratch.join("data").join("letter.txt"), b"dear").unwrap();
    let error = scratch.fails(&small(&["put", "k", "v"]));
    assert!(error.contains("letter.txt") && error.contains("nothing was written"), "{error}");
    assert_eq!(fs::read_dir(scratch.join("data")).unwrap().count(), 1);
    // A file with the right name is not a store yet.
    let drive = scratch.join("data").join("drive");
    fs::write(&drive, vec![7; 1 << 20]).unwrap();
    let error = scratch.fails(&small(&["put", "k", "v"]));
    assert!(error.contains("no tapetum store here") && error.contains("nothing was written"), "{error}");
    assert_eq!(bytes_of(&drive), vec![7; 1 << 20]);
}

#[test]
fn a_truncated_store_is_refused_unchanged() {
    let scratch = new_scratch("truncated");
    scratch.succeeds(&small(&["put", "k", "v"]));
    let drive = scratch.join("data").join("drive");
    fs::File::options().write(true).open(&drive).unwrap().set_len(64 << 20).unwrap();
    let before = bytes_of(&drive);
    let error = scratch.fails(&small(&["get", "k"]));
    assert!(error.contains("cut short"), "{error}");
    assert!(bytes_of(&drive) == before);
}

#[test]
fn a_newer_store_is_refused_unchanged() {
    let scratch = new_scratch("newer");
    scratch.succeeds(&small(&["put", "k", "v"]));
    let drive = scratch.join("data").join("drive");
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
    let scratch = new_scratch("full");
    let error = scratch.fails(&["put", "k", "v", "--create", "--capacity", "4000TiB"]);
    assert!(error.contains("--capacity") || error.contains("space"), "{error}");
    assert!(!scratch.join("data").exists());
    let inner = scratch.join("a/b/data");
    let words = ["serve", "--memcached", "127.0.0.1:0", "--capacity", "4000TiB", "--data", inner.to_str().unwrap()];
    failed(tapetum(&words).output().unwrap());
    assert!(!scratch.join("a").exists());
    // Folders that existed before stay.
    fs::create_dir_all(scratch.join("data")).unwrap();
    fs::create_dir(scratch.join("a")).unwrap();
    scratch.fails(&["put", "k", "v", "--create", "--capacity", "4000TiB"]);
    assert!(scratch.join("data").exists());
    failed(tapetum(&words).output().unwrap());
    assert_eq!(fs::read_dir(scratch.join("a")).unwrap().count(), 0);
}

#[test]
fn what_is_refused_makes_no_store() {
    let scratch = new_scratch("refused");
    for (words, told) in [
        (&["load", "/absent/file"][..], "cannot read /absent/file: No such file"),
        (&["load", "/"], "/ is a folder: give a file of items"),
        (&["serve", "--memcached", "none", "--nbd", "127.0.0.1:0"], "there is no store at"),
        (
            &["serve", "--memcached", "127.0.0.1:0", "--nbd", "127.0.0.1:0", "--full", "evict"],
            "--nbd needs --full error",
        ),
    ] {
        let error = scratch.fails(&small(words));
        assert!(error.contains(told) && !scratch.join("data").exists(), "{words:?}: {error}");
    }
}

#[test]
fn an_interrupted_creation_is_begun_again() {
    let scratch = new_scratch("interrupted");
    fs::create_dir_all(scratch.join("data")).unwrap();
    fs::write(scratch.join("data").join("drive.unfinished"), vec![1; 8192]).unwrap();
    scratch.succeeds(&small(&["put", "k", "v"]));
    assert_eq!(scratch.succeeds(&small(&["get", "k"])), "v");
    assert!(!scratch.join("data").join("drive.unfinished").exists());
}

#[test]
fn a_drive_of_its_own_may_lie_anywhere() {
    let scratch = new_scratch("drive");
    let drive = scratch.join("elsewhere.drive");
    let drive = drive.to_str().unwrap();
    scratch.succeeds(&small(&["put", "k", "v", "--drive", drive]));
    assert_eq!(scratch.succeeds(&small(&["get", "k", "--drive", drive])), "v");
    assert!(!scratch.join("data").exists());
    let other = scratch.join("other.drive");
    let beside = scratch.join("other.drive.unfinished");
    fs::write(&beside, "of mine").unwrap();
    let error = scratch.fails(&small(&["put", "k", "v", "--drive", other.to_str().unwrap()]));
    assert!(error.contains("other.drive.unfinished") && error.contains("move it"), "{error}");
    assert_eq!(bytes_of(&beside), b"of mine");
    let nowhere = scratch.join("nowhere");
    let error = scratch.fails(&["put", "k", "v", "--create", "--drive", nowhere.join("drive").to_str().unwrap()]);
    assert!(error.contains(&format!("{} does not exist", nowhere.display())), "{error}");
}

#[test]
fn what_is_loaded_is_listed_and_dumped_and_can_be_loaded_again() {
    let scratch = new_scratch("load");
    let file = |name: &str, text: &[u8]| {
        let path = scratch.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let tsv = file("items.tsv", b"fruit:apple\tred\\tgreen\nfruit:pear\t\nroot\t\\x00\\xff\n");
    let output = scratch.run(&small(&["load", &tsv]));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "3 items stored\n");
    let jsonl = file("items.jsonl", br#"{"key":"flagged","value":"v","flags":7,"expiry":4000000000}"#);
    scratch.succeeds(&small(&["load", &jsonl]));
    let sorted = |text: String| {
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    assert_eq!(sorted(scratch.succeeds(&small(&["list", "--prefix", "fruit:"]))), "fruit:apple\nfruit:pear");
    let long = "flagged\t1\t7\t4000000000\nfruit:apple\t9\t0\t0\nfruit:pear\t0\t0\t0\nroot\t2\t0\t0";
    assert_eq!(sorted(scratch.succeeds(&small(&["list", "--long"]))), long);
    let dumped = scratch.succeeds(&small(&["dump"]));
    for line in [
        r#"{"key":"fruit:apple","value":"red\tgreen"}"#,
        r#"{"key":"root","value_base64":"AP8="}"#,
        r#"{"key":"flagged","value":"v","flags":7,"expiry":4000000000}"#,
    ] {
        assert!(dumped.lines().any(|found| found == line), "{line} is not in {dumped}");
    }
    // Load into another store through standard input, and dump again.
    let other = new_scratch("load-again");
    let mut child = other.command(&small(&["load", "--format", "jsonl"])).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(dumped.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(sorted(other.succeeds(&small(&["dump"]))), sorted(dumped));
    let tsv = other.succeeds(&small(&["dump", "--format", "tsv", "--prefix", "fruit:a"]));
    assert_eq!(tsv, "fruit:apple\tred\\tgreen\n");
}

#[test]
fn bad_lines_are_named_or_left_out() {
    let scratch = new_scratch("bad-lines");
    let path = scratch.join("items.tsv");
    fs::write(&path, b"a\t1\nnonsense\nb\t2\n").unwrap();
    let path = path.to_str().unwrap();
    let error = scratch.fails(&small(&["load", path]));
    assert!(error.contains("line 2: there is no tab") && error.contains("--skip-bad"), "{error}");
    let output = scratch.run(&small(&["load", "--skip-bad", path]));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("2 items stored, 1 bad lines left out"), "{told}");
    // Over the wire too, where the protocol limits keys.
    let server = serve(&scratch, &[]);
    let socket = scratch.socket();
    fs::write(path, b"c\t3\ntwo words\t4\n").unwrap();
    let error = scratch.fails(&["load", path, "--memcached", &socket]);
    assert!(error.contains("line 2: ") && error.contains("spaces"), "{error}");
    let output = scratch.run(&["load", path, "--memcached", &socket, "--skip-bad"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    server.stop();
    let mut keys: Vec<String> = scratch.succeeds(&small(&["list"])).lines().map(str::to_owned).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b", "c"]);
}

#[test]
fn a_store_that_fills_up_ends_a_load_with_a_way_out() {
    let scratch = new_scratch("load-full");
    let options = ["--create", "--capacity", "16MiB", "--memory", "32MiB"];
    let error = load_too_much(scratch.command(&["load"]).args(options));
    assert!(error.contains("--capacity") && error.contains("stored before it: "), "{error}");
    assert!(scratch.succeeds(&["check", "--memory", "32MiB"]).contains("no damage"));
}

#[test]
fn a_server_that_is_full_says_so_to_clients_and_the_way_out_to_the_log() {
    let scratch = new_scratch("serve-full");
    let (socket, log) = (scratch.join("socket"), scratch.join("log"));
    let address = format!("unix:{}", socket.display());
    let words = ["serve", "--capacity", "16MiB", "--memory", "32MiB", "--threads", "2", "--memcached", &address];
    let mut server = scratch.command(&words).stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
    while !fs::read_to_string(&log).unwrap().contains("to memcached clients at") {
        assert!(server.try_wait().unwrap().is_none(), "the server ended");
        std::thread::yield_now();
    }
    let error = load_too_much(&mut scratch.command(&["load", "--memcached", &address]));
    assert!(error.contains("the server is full") && error.contains("stored before it: "), "{error}");
    let mut told = String::new();
    // The log's thread may be a little late.
    while !told.contains("flash is full") {
        assert!(server.try_wait().unwrap().is_none(), "the server ended: {told}");
        told = fs::read_to_string(&log).unwrap();
    }
    assert!(told.matches("flash is full").count() == 1 && told.contains("--capacity"), "{told}");
    // The collector may have made some room meanwhile.
    let mut client = BufReader::new(UnixStream::connect(socket).unwrap());
    let mut answer = String::from("STORED\r\n");
    for number in 0..1000 {
        client.get_mut().write_all(format!("set new{number} 0 0 5000\r\n").as_bytes()).unwrap();
        client.get_mut().write_all(&noise(number).repeat(10).as_bytes()[..5000]).unwrap();
        client.get_mut().write_all(b"\r\n").unwrap();
        answer.clear();
        client.read_line(&mut answer).unwrap();
        if answer != "STORED\r\n" {
            break;
        }
    }
    assert_eq!(answer, "SERVER_ERROR out of memory storing object\r\n");
    stop(&mut server);
}

/// Loads more than 16 MiB can hold, with a load that reads its input. Returns its error text.
fn load_too_much(load: &mut Command) -> String {
    let mut child = load.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for number in 0..80_000 {
        // A load that takes no more input has ended.
        if input.write_all(format!("key{number}\t{}\n", noise(number)).as_bytes()).is_err() {
            break;
        }
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{error}");
    error
}

/// 512 bytes that do not compress.
fn noise(seed: u64) -> String {
    let mut random = tapetum_drive::SplitMix64::new(seed);
    (0..64).map(|_| format!("{:08x}", random.next_u64() >> 32)).collect()
}

#[test]
fn a_look_inside_says_the_same_of_a_server_and_of_its_data() {
    let scratch = new_scratch("inspect");
    let socket = scratch.socket();
    let lines: String = (0..40_000).map(|number| format!("key{number}\tvalue {number} of many\n")).collect();
    let items = scratch.join("items.tsv");
    fs::write(&items, lines).unwrap();
    scratch.succeeds(&small(&["load", items.to_str().unwrap()]));
    let server = serve(&scratch, &[]);
    // Wait until the load's write buffers are flushed into a segment.
    while !scratch.succeeds(&["stats", "--json", "--memcached", &socket]).contains("\"buffers_sealed\": 0") {}
    let live: serde_json::Value =
        serde_json::from_str(&scratch.succeeds(&["inspect", "--json", "--memcached", &socket])).unwrap();
    let served: serde_json::Value = serde_json::from_str(&scratch.succeeds(&["inspect", "--json"])).unwrap();
    assert_eq!((&live["superblock"], &live["segments"]), (&served["superblock"], &served["segments"]));
    let map = scratch.succeeds(&["inspect", "--map", "--memcached", &socket]);
    let place = scratch.succeeds(&["inspect", "key7", "--memcached", &socket]);
    assert!(place.contains("live true") && place.contains("key_bytes 4"), "{place}");
    server.stop();
    let closed: serde_json::Value = serde_json::from_str(&scratch.succeeds(&["inspect", "--json"])).unwrap();
    assert_eq!((&live["superblock"], &live["segments"]), (&closed["superblock"], &closed["segments"]));
    let segments = closed["segments"].as_array().unwrap();
    assert!(segments.len() > 1 && segments.iter().all(|segment| segment["valid_entries"].as_u64() > Some(0)));
    assert_eq!(scratch.succeeds(&["inspect", "--map"]).lines().next(), map.lines().next());
    assert!(map.contains("of it valid") && !map.contains('\x1b'), "{map}");
    let report = scratch.succeeds(&["inspect"]);
    assert!(report.contains("superblock") && report.contains("extents"), "{report}");
    let place = scratch.succeeds(&small(&["inspect", "key7"]));
    assert!(place.contains("place segment") || place.contains("place write buffer"), "{place}");
    assert!(scratch.succeeds(&small(&["inspect", "nokey"])).contains("place nowhere"));
}

#[test]
fn a_store_grows_while_it_serves_and_while_it_does_not() {
    let scratch = new_scratch("resize");
    let socket = scratch.socket();
    let limit = |scratch: &Scratch| {
        let stats = scratch.succeeds(&["stats", "--json", "--memory", "32MiB"]);
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        stats["flash_limit_bytes"].as_u64().unwrap() >> 20
    };
    let resize = ["resize", "--memcached", &socket];
    let server = serve(&scratch, &[]);
    scratch.succeeds(&[&resize[..], &["--capacity", "200MiB", "--memory", "64MiB"]].concat());
    let stats = scratch.succeeds(&["stats", "--json", "--memcached", &socket]);
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    let figure = |name: &str| stats[name].as_u64().unwrap() >> 20;
    assert_eq!((figure("flash_limit_bytes"), figure("memory_limit_bytes")), (199, 60));
    let error = scratch.fails(&[&resize[..], &["--capacity", "1TiB"]].concat());
    assert!(
        error.contains("capacity stays as it is") && error.contains("can grow to 512MiB and not to 1TiB"),
        "{error}"
    );
    let error = scratch.fails(&[&resize[..], &["--memory", "1MiB"]].concat());
    assert!(error.contains("memory stays as it is") && error.contains("front doors"), "{error}");
    // The size that the error names is exactly enough.
    let least = error.split("give ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    scratch.succeeds(&[&resize[..], &["--memory", least]].concat());
    let error = scratch.fails(&[&resize[..], &["--memory", "900TiB"]].concat());
    assert!(error.contains("memory stays as it is: 900TiB is more than this machine has"), "{error}");
    // The same beside the data.
    let told = scratch.succeeds(&["resize", "--memory", "64MiB"]);
    assert_eq!(told, "memory is 64 MiB now\n");
    let error = scratch.fails(&["resize", "--memory", "1MiB"]);
    assert!(error.contains("memory stays as it is") && error.contains("front doors"), "{error}");
    server.stop();
    assert_eq!(limit(&scratch), 199);
    scratch.succeeds(&["resize", "--capacity", "256MiB"]);
    assert_eq!(limit(&scratch), 255);
    // A larger --capacity at the start grows the store. A smaller one changes nothing and is reported.
    scratch.succeeds(&["put", "k", "v", "--create", "--capacity", "300MiB", "--memory", "32MiB"]);
    assert_eq!(limit(&scratch), 299);
    let output = scratch.run(&small(&["put", "k", "v"]));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("does not shrink"), "{told}");
    assert_eq!(limit(&scratch), 299);
    assert!(scratch.fails(&["resize", "--capacity", "100MiB"]).contains("cannot shrink"));
    // Memory is the server's, however the store is named.
    let settings = scratch.join("settings.toml");
    fs::write(&settings, format!("data = {:?}\n", scratch.join("data"))).unwrap();
    for sizes in [&["--memory", "400MiB"][..], &["--capacity", "380MiB", "--memory", "390MiB"]] {
        let resize = || tapetum(&[&["resize"][..], sizes].concat());
        let drive = scratch.join("data").join("drive");
        for refused in [
            scratch.run(&[&["resize"][..], sizes].concat()),
            resize().arg("--drive").arg(&drive).output().unwrap(),
            resize().env("TAPETUM_DATA", scratch.join("data")).output().unwrap(),
            resize().arg("--config").arg(&settings).output().unwrap(),
        ] {
            let error = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(1), "{error}");
            assert!(error.contains("memory is what a running one may use"), "{error}");
        }
    }
    assert_eq!(limit(&scratch), 299);
    assert!(scratch.succeeds(&["check", "--memory", "32MiB"]).contains("no damage"));
}

#[test]
fn too_little_memory_is_refused_with_what_is_enough() {
    let scratch = new_scratch("memory");
    scratch.succeeds(&["put", "k", "v", "--create", "--capacity", "1GiB", "--memory", "256MiB"]);
    let error = scratch.fails(&["get", "k", "--memory", "8MiB"]);
    let least = error.split("give ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().to_owned();
    assert_eq!(scratch.succeeds(&["get", "k", "--memory", &least]), "v");
    let socket = scratch.socket();
    let error = scratch.fails(&["serve", "--memcached", &socket, "--memory", &least]);
    assert!(error.contains("MiB or more") && !error.contains(&format!("give {least} or")), "{error}");
}

#[test]
fn a_tier_that_leaves_too_little_memory_is_refused_and_nothing_is_made() {
    let scratch = new_scratch("tier");
    let message = scratch.fails(&small(&["serve", "--tier", "40MiB", "--memcached", "127.0.0.1:0"]));
    assert!(message.contains("smaller --tier"), "{message}");
    assert!(!scratch.join("data").join("drive").exists());
}

#[test]
fn a_cache_with_too_little_memory_is_told_at_once_what_is_enough() {
    let scratch = new_scratch("cache");
    let socket = scratch.socket();
    let options = ["serve", "--cache", "--capacity", "32MiB", "--threads", "1", "--memcached", &socket, "--memory"];
    let message = scratch.fails(&[&options[..], &["32MiB"]].concat());
    assert!(message.contains("of which --cache gives half") && !message.contains("--tier 16MiB"), "{message}");
    let least = message.split("give --memory ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    Served::start(&mut scratch.command(&[&options[..], &[least]].concat())).stop();
}

#[test]
fn a_drive_that_holds_no_store_is_refused_with_what_to_give_instead() {
    let scratch = new_scratch("no-store");
    for (name, bytes) in [("empty", 0), ("zeros", 64 << 20)] {
        let drive = scratch.join(name);
        fs::File::create(&drive).unwrap().set_len(bytes).unwrap();
        let drive = drive.to_str().unwrap();
        let error = scratch.fails(&small(&["put", "k", "v", "--drive", drive]));
        assert!(error.contains("no tapetum store here") && error.contains("a path that is not there yet"), "{error}");
    }
}

/// Commands that read, other than those to a server; `key` is in the store.
fn reading(key: &str) -> Vec<Vec<&str>> {
    let lines = [
        "stats",
        "stats --json",
        "list --long",
        "dump",
        "check",
        "inspect",
        "inspect --json",
        "inspect --map",
        "resize --capacity 128MiB",
    ];
    let words = lines.map(|line| line.split(' ').collect());
    words.into_iter().chain([vec!["get", key], vec!["inspect", key]]).collect()
}

fn sized<'a>(words: &[&'a str]) -> Vec<&'a str> {
    // `resize` takes --memory for the new size.
    if words[0] == "resize" { words.to_vec() } else { words.iter().chain(&["--memory", "32MiB"]).copied().collect() }
}

#[test]
fn what_only_reads_changes_no_byte_of_a_closed_or_a_crashed_store() {
    let scratch = new_scratch("reads");
    let drive = scratch.join("data").join("drive");
    let unchanged = |key: &str| {
        let before = bytes_of(&drive);
        for words in reading(key) {
            scratch.succeeds(&sized(&words));
            assert!(bytes_of(&drive) == before, "changed by {words:?}");
        }
        assert!(scratch.fails(&small(&["get", "absent"])).contains("no key"));
        assert!(bytes_of(&drive) == before);
    };
    scratch.succeeds(&small(&["put", "closed", "v"]));
    unchanged("closed");
    let mut server = serve(&scratch, &[]);
    let socket = scratch.socket();
    let items = scratch.join("items.tsv");
    fs::write(&items, "crashed\tin the log\n").unwrap();
    scratch.succeeds(&["load", items.to_str().unwrap(), "--memcached", &socket]);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    unchanged("crashed");
    assert_eq!(scratch.succeeds(&small(&["get", "crashed"])), "in the log");
    assert_eq!(scratch.succeeds(&small(&["list"])).lines().count(), 2);
}

#[test]
fn those_that_read_go_together_and_keep_a_server_out() {
    let scratch = new_scratch("readers");
    let items = scratch.join("items.tsv");
    // More than a pipe takes: the dump waits for its reader with the store open.
    let lines: String = (0..20_000).map(|number| format!("key{number}\tvalue {number}\n")).collect();
    fs::write(&items, lines).unwrap();
    scratch.succeeds(&small(&["load", items.to_str().unwrap()]));
    let mut dump = scratch.command(&small(&["dump"])).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(dump.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("key"));
    assert_eq!(scratch.succeeds(&small(&["get", "key7"])), "value 7");
    let error = scratch.fails(&small(&["put", "k", "v"]));
    assert!(error.contains("is in use"), "{error}");
    assert_eq!(lines.count(), 19_999);
    assert!(dump.wait().unwrap().success());
    scratch.succeeds(&small(&["put", "k", "v"]));
}

#[test]
fn an_item_goes_through_a_pipeline_of_programs() {
    let scratch = new_scratch("pipeline");
    scratch.succeeds(&small(&["put", "word", "mirror"]));
    let listed = tapetum(&["programs"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("match-record") && listed.contains("zstd-decompress"), "{listed}");
    let digest = "00154761637ca746c354a6d9cfbf1da1a92e79afa6bb127bb8a1c434e9c73170\n";
    let run = |text: &'static str| ["pipeline", "run", text, "--key", "word", "--compute-units", "sha256=1"];
    let there_and_back = scratch.succeeds(&run("fetch | zstd | zstd -d | sha256"));
    assert_eq!(there_and_back, digest);
    assert_eq!(scratch.succeeds(&run("fetch | sha256")), digest);
    assert_eq!(scratch.succeeds(&run("snappy | snappy -d")), "mirror");
    assert!(scratch.fails(&run("fetch | zstd -d")).contains("stage 0, zstd-decompress: its input is damaged"));
    assert!(scratch.fails(&["pipeline", "run", "sha256", "--key", "other"]).contains("no key"));
    let near = |text: &'static str| ["pipeline", "run", text, "--key", "word"];
    assert_eq!(scratch.succeeds(&near("fetch | zstd | zstd -d | sha256")), digest);
    assert!(scratch.fails(&near("concat | snappy -d")).contains("stage 1, snappy-decompress: its input is damaged"));
    let units = ["--compute-units", "zstd=1,snappy=1", "--pin", "--stats"];
    assert_eq!(scratch.succeeds(&[&near("zstd | zstd -d")[..], &units].concat()), "mirror");
    let unknown = [&near("sha256")[..], &["--compute-units", "gzip=1"]].concat();
    assert!(scratch.fails(&unknown).contains("no program \"gzip\" to give threads"));
}

/// See `crates/store/tests/embedded/formats.rs`.
const FORMAT_6: &[u8] = include_bytes!("../../../store/tests/fixtures/format-6.zst");

#[test]
fn a_store_of_format_6_is_refused_by_every_command_with_what_to_do() {
    let scratch = new_scratch("format-6");
    let bytes = zstd::decode_all(FORMAT_6).unwrap();
    fs::create_dir_all(scratch.join("data")).unwrap();
    let drive = scratch.join("data").join("drive");
    fs::write(&drive, &bytes).unwrap();
    let commands: [&[&str]; 13] = [
        &["serve", "--memcached", "127.0.0.1:0"],
        &["put", "key", "value"],
        &["get", "greeting"],
        &["delete", "greeting"],
        &["stats"],
        &["load", "/dev/null"],
        &["list"],
        &["dump"],
        &["inspect"],
        &["resize", "--capacity", "64MiB"],
        &["check"],
        &["repair"],
        &["repair", "--yes"],
    ];
    for command in commands {
        let refusal = scratch.fails(command);
        let does_say = |part: &str| assert!(refusal.contains(part), "{command:?}: {refusal}");
        ["format 6", "`tapetum dump` of the tapetum", "`tapetum load` of this one"].into_iter().for_each(does_say);
        assert!(fs::read(&drive).unwrap() == bytes, "{command:?} wrote");
    }
    let names = fs::read_dir(scratch.join("data")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["drive"]);
}
