//! Keyspaces from outside: made, filled, listed, renamed and dropped without a server, and served, each at its own socket. After each
//! refusal the data are what they were.

use std::fs;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::process::Child;

use crate::outside::{Scratch, Served, stop, succeeded, tapetum};

pub fn new_scratch(name: &str) -> Scratch {
    Scratch::new(&format!("keyspaces-{name}"), |command, words, data| {
        command.args(["--memory", "32MiB", "--data"]).arg(data);
        match words {
            ["serve", ..] | ["keyspace", "create", ..] => command.args(["--capacity", "64MiB"]),
            ["put" | "load", ..] => command.args(["--create", "--capacity", "64MiB"]),
            _ => command,
        };
    })
}

fn drive(scratch: &Scratch) -> Vec<u8> {
    fs::read(scratch.join("data/drive")).unwrap()
}

/// The lines of a listing, in order.
fn sorted_lines(scratch: &Scratch, words: &[&str]) -> Vec<String> {
    let mut lines: Vec<String> = scratch.succeeds(words).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The names of the keyspaces.
fn keyspaces(scratch: &Scratch) -> Vec<String> {
    let lines = sorted_lines(scratch, &["keyspace", "list"]);
    lines.iter().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
}

/// Starts a server on `socket`, and waits until it serves.
pub fn serve(scratch: &Scratch, options: &[&str]) -> Child {
    let words = [&["serve", "--threads", "2"], options].concat();
    let Served { child, mut rest, .. } = Served::start(&mut scratch.command(&words));
    // Its log goes on, and must not stop it.
    std::thread::spawn(move || std::io::copy(&mut rest, &mut std::io::sink()));
    child
}

#[test]
fn an_ordered_keyspace_is_filled_scanned_listed_dumped_and_loaded() {
    let store = new_scratch("ordered");
    store.succeeds(&["keyspace", "create", "places", "--index", "ordered"]);
    for (key, value) in [("b:2", "two"), ("a:1", "one"), ("b:10", "ten"), ("c:3", "three")] {
        store.succeeds(&["put", key, value, "--keyspace", "places"]);
    }
    let scan = |options: &[&str]| store.succeeds(&[&["scan", "--keyspace", "places"], options].concat());
    assert_eq!(scan(&[]), "a:1\tone\nb:10\tten\nb:2\ttwo\nc:3\tthree\n");
    assert_eq!(scan(&["--prefix", "b:", "--reverse"]), "b:2\ttwo\nb:10\tten\n");
    assert_eq!(scan(&["--from", "b", "--to", "c", "--limit", "1"]), "b:10\tten\n");
    assert_eq!(scan(&["--count"]), "4\n");
    assert_eq!(scan(&["--from", "c:3", "--format", "jsonl"]), "{\"key\":\"c:3\",\"value\":\"three\"}\n");
    assert!(store.fails(&["scan", "--keyspace", "places", "--from", "c", "--to", "b"]).contains("--reverse"));
    assert!(store.fails(&["scan", "--keyspace", "default"]).contains("ordered"));
    assert_eq!(store.succeeds(&["list", "--keyspace", "places", "--prefix", "b:"]), "b:10\nb:2\n");
    let dumped = store.path("dumped.jsonl");
    fs::write(&dumped, store.succeeds(&["dump", "--keyspace", "places"])).unwrap();
    store.succeeds(&["keyspace", "create", "copies", "--index", "ordered"]);
    store.succeeds(&["load", &dumped, "--keyspace", "copies"]);
    assert_eq!(store.succeeds(&["scan", "--keyspace", "copies"]), scan(&[]));
    store.succeeds(&["delete", "a:1", "--keyspace", "places"]);
    let listed = sorted_lines(&store, &["keyspace", "list"]);
    assert_eq!(listed, ["copies\tordered\t4", "default\thashed\t0", "places\tordered\t3"]);
    store.succeeds(&["put", "a:1", "one", "--keyspace", "places"]);
    assert!(store.succeeds(&["check"]).contains("no damage"));
    store.succeeds(&["keyspace", "drop", "places", "--yes"]);
    assert!(store.fails(&["scan", "--keyspace", "places"]).contains("no keyspace"));
}

#[test]
fn a_keyspace_has_keys_of_its_own() {
    let scratch = new_scratch("own");
    assert_eq!(scratch.succeeds(&["keyspace", "create", "orders"]), "keyspace orders was created\n");
    scratch.succeeds(&["keyspace", "create", "naïve users", "--index", "hashed"]);
    assert_eq!(keyspaces(&scratch), ["default", "naïve users", "orders"]);
    scratch.succeeds(&["put", "key", "of default"]);
    scratch.succeeds(&["put", "key", "of orders", "--keyspace", "orders"]);
    assert_eq!(scratch.succeeds(&["get", "key"]), "of default");
    assert_eq!(scratch.succeeds(&["get", "key", "--keyspace", "orders"]), "of orders");
    assert!(scratch.fails(&["get", "key", "--keyspace", "naïve users"]).contains("no key"));
    assert_eq!(scratch.succeeds(&["list", "--keyspace", "orders", "--long"]), "key\t9\t0\t0\n");
    assert_eq!(scratch.succeeds(&["list", "--keyspace", "naïve users"]), "");
    let place = |keyspace: &str| scratch.succeeds(&["inspect", "key", "--keyspace", keyspace]);
    assert_ne!(place("default"), place("orders"));
    assert!(place("naïve users").contains("missing") || !place("naïve users").contains("stamp"));
    let digest =
        |keyspace: &str| scratch.succeeds(&["pipeline", "run", "sha256", "--key", "key", "--keyspace", keyspace]);
    assert_ne!(digest("default"), digest("orders"));
    scratch.succeeds(&["delete", "key"]);
    assert_eq!(scratch.succeeds(&["get", "key", "--keyspace", "orders"]), "of orders");
    assert!(scratch.succeeds(&["check"]).contains("no damage"));
}

#[test]
fn a_renamed_keyspace_keeps_its_items_and_a_dropped_one_does_not() {
    let scratch = new_scratch("renamed");
    scratch.succeeds(&["keyspace", "create", "a"]);
    scratch.succeeds(&["put", "key", "value", "--keyspace", "a"]);
    assert_eq!(scratch.succeeds(&["keyspace", "rename", "a", "b"]), "keyspace a is called b now\n");
    assert_eq!(scratch.succeeds(&["get", "key", "--keyspace", "b"]), "value");
    assert!(scratch.fails(&["get", "key", "--keyspace", "a"]).contains("no keyspace \"a\""));
    let dropped = scratch.succeeds(&["keyspace", "drop", "b", "--yes"]);
    assert!(dropped.contains("keyspace b was dropped") && dropped.contains("room comes back"), "{dropped}");
    assert_eq!(keyspaces(&scratch), ["default"]);
    assert!(scratch.fails(&["get", "key", "--keyspace", "b"]).contains("no keyspace \"b\""));
    scratch.succeeds(&["keyspace", "create", "b"]);
    assert!(scratch.fails(&["get", "key", "--keyspace", "b"]).contains("no key \"key\""));
    assert_eq!(scratch.succeeds(&["list", "--keyspace", "b"]), "");
    let listed: serde_json::Value = serde_json::from_str(&scratch.succeeds(&["keyspace", "list", "--json"])).unwrap();
    let named = |name: &str| {
        let found = listed.as_array().unwrap().iter().filter(|one| one["name"] == name && one["state"] == "live");
        found.map(|one| (one["id"].as_u64().unwrap(), one["kind"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(named("default"), [(0, "hashed".into())]);
    assert_eq!(named("b").len(), 1);
}

#[test]
fn what_is_dumped_of_a_keyspace_is_loaded_into_another() {
    let scratch = new_scratch("dumped");
    let (items, dumped) = (scratch.path("items.tsv"), scratch.path("dumped.jsonl"));
    let lines: String = (0..5_000).map(|number| format!("key{number}\tvalue {number}\n")).collect();
    fs::write(&items, lines).unwrap();
    for keyspace in ["from", "to"] {
        scratch.succeeds(&["keyspace", "create", keyspace]);
    }
    scratch.succeeds(&["put", "other", "of default"]);
    scratch.succeeds(&["load", &items, "--keyspace", "from"]);
    fs::write(&dumped, scratch.succeeds(&["dump", "--keyspace", "from"])).unwrap();
    scratch.succeeds(&["load", &dumped, "--keyspace", "to"]);
    let of = |keyspace: &str| sorted_lines(&scratch, &["dump", "--keyspace", keyspace]);
    assert_eq!(of("from").len(), 5_000);
    assert_eq!(of("from"), of("to"));
    assert_eq!(of("to"), sorted_lines(&scratch, &["dump", "--skip-bad", "--keyspace", "to"]));
    assert_eq!(of("default").len(), 1);
    let listed = sorted_lines(&scratch, &["keyspace", "list"]);
    assert_eq!(listed[0], "default\thashed\t1");
    for (line, name) in listed[1..].iter().zip(["from", "to"]) {
        let items: u64 = line.strip_prefix(&format!("{name}\thashed\t")).unwrap().parse().unwrap();
        assert!(items.abs_diff(5_000) < 500, "about 5,000: {line}");
    }
    let error = scratch.fails(&["dump", "--skip-bad", "--keyspace", "none"]);
    assert!(error.contains("no keyspace \"none\""), "{error}");
}

#[test]
fn what_cannot_be_done_to_a_keyspace_is_refused_and_nothing_is_written() {
    let scratch = new_scratch("refused");
    for keyspace in ["taken", "dropped"] {
        scratch.succeeds(&["keyspace", "create", keyspace]);
    }
    scratch.succeeds(&["keyspace", "drop", "dropped", "--yes"]);
    let names = keyspaces(&scratch);
    let long = "a".repeat(300);
    for (words, advice) in [
        (&["create", "taken"][..], "there is a keyspace \"taken\" already: use it, or choose another name"),
        (&["create", "default"], "there is a keyspace \"default\" already"),
        (&["create", ""], "is empty"),
        (&["create", &long], "has 300 bytes: use at most 255"),
        (&["create", "a\tb"], "control character"),
        (&["create", "a", "--index", "sorted"], "ordered"),
        (&["drop", "default", "--yes"], "default keyspace is always there"),
        (&["drop", "dropped", "--yes"], "keyspace"),
        (&["drop", "none", "--yes"], "`tapetum keyspace list` prints those it has"),
        (&["rename", "none", "a"], "`tapetum keyspace create` makes one"),
        (&["rename", "taken", "default"], "\"default\" already"),
        (&["rename", "default", "a"], "default keyspace is always there"),
        (&["rename", "taken", "taken"], "\"taken\" already"),
        (&["rename", "taken", ""], "is empty"),
    ] {
        let refused = scratch.run(&[&["keyspace"], words].concat());
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(
            !refused.status.success() && error.starts_with("error: ") && error.contains(advice),
            "{words:?}: {error}"
        );
        assert_eq!(keyspaces(&scratch), names);
    }
    let before = drive(&scratch);
    for words in [&["get", "k"][..], &["list"], &["dump"], &["inspect", "k"]] {
        let error = scratch.fails(&[words, &["--keyspace", "none"]].concat());
        assert!(error.contains("no keyspace \"none\": `tapetum keyspace list`"), "{error}");
        assert_eq!(drive(&scratch), before);
    }
    for words in [&["put", "k", "v"][..], &["delete", "k"], &["load", "/dev/null"]] {
        let error = scratch.fails(&[words, &["--keyspace", "none"]].concat());
        assert!(error.contains("no keyspace \"none\": `tapetum keyspace list`"), "{error}");
    }
    assert_eq!(keyspaces(&scratch), names);
}

#[test]
fn a_name_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let scratch = new_scratch("bytes");
    let name = std::ffi::OsStr::from_bytes(b"a\xff");
    let refused = scratch.command(&["keyspace", "create"]).arg(name).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && error.contains("not UTF-8: use text"), "{error}");
    assert!(!scratch.join("data").exists());
}

#[test]
fn a_keyspace_that_is_not_there_makes_no_store() {
    let scratch = new_scratch("absent");
    for words in [&["put", "k", "v"][..], &["load", "/dev/null"], &["get", "k"], &["dump"]] {
        let error = scratch.fails(&[words, &["--keyspace", "orders"]].concat());
        assert!(error.contains("there is no store at"), "{error}");
    }
    for words in [&["list"][..], &["drop", "orders", "--yes"], &["rename", "orders", "others"], &["create", "default"]]
    {
        scratch.fails(&[&["keyspace"], words].concat());
    }
    assert!(!scratch.join("data").exists());
}

#[test]
fn keyspaces_of_a_running_server_are_made_and_dropped() {
    let scratch = new_scratch("served");
    scratch.succeeds(&["keyspace", "create", "a"]);
    let mut server = serve(&scratch, &["--memcached", &format!("unix:{}", scratch.path("socket"))]);
    for words in [&["create", "b"][..], &["drop", "a", "--yes"], &["rename", "b", "c"]] {
        scratch.succeeds(&[&["keyspace"], words].concat());
    }
    assert_eq!(keyspaces(&scratch), ["c", "default"]);
    stop(&mut server);
    assert_eq!(keyspaces(&scratch), ["c", "default"]);
}

#[test]
fn there_may_be_a_thousand_and_at_the_limit_it_is_said() {
    let scratch = new_scratch("many");
    let store =
        tapetum::Options::new().capacity_bytes(64 << 20).memory_bytes(32 << 20).open(scratch.path("data")).unwrap();
    let refused = (1..).find_map(|number| Some((number, store.create_keyspace(&format!("{number}")).err()?)));
    let (number, _) = refused.unwrap();
    assert!(number > 1_000, "only {number}");
    store.close().unwrap();
    drop(store);
    let error = scratch.fails(&["keyspace", "create", "more"]);
    assert!(error.contains("drop") || error.contains("room"), "{error}");
    scratch.succeeds(&["keyspace", "drop", "17", "--yes"]);
    assert!(!keyspaces(&scratch).contains(&"17".into()));
}

/// Values beyond a mebibyte go to an ordered keyspace as they go to a hashed one.
#[test]
fn large_values_of_an_ordered_keyspace_are_served_and_there_after_a_restart() {
    let scratch = new_scratch("large");
    scratch.succeeds(&["keyspace", "create", "blobs", "--index", "ordered"]);
    let socket = format!("unix:{}", scratch.path("socket"));
    let value: String = (0..1_300_000_u64).map(|at| char::from(b'a' + (at * at / 977 % 26) as u8)).collect();
    let (most, more) = ("x".repeat(3 << 20), "x".repeat(5 << 20));
    let is_value = |reply: &str, value: &str| reply == format!("VALUE key 0 {}\r\n{value}\r\nEND\r\n", value.len());
    for turn in 0..2 {
        let mut server = serve(&scratch, &["--memcached", &socket, "--keyspace", "blobs"]);
        let ask = |script: &str| exchange(&scratch, "socket", script);
        if turn == 0 {
            assert_eq!(ask(&format!("set key 0 0 {}\r\n{value}\r\n", value.len())), "STORED\r\n");
            assert_eq!(ask("append key 0 0 3\r\nend\r\n"), "STORED\r\n");
            assert_eq!(ask(&format!("set most 0 0 {}\r\n{most}\r\n", most.len())), "STORED\r\n");
            let refused = ask(&format!("set more 0 0 {}\r\n{more}\r\nget more\r\n", more.len()));
            assert_eq!(refused, "SERVER_ERROR object too large for cache\r\nEND\r\n");
        }
        assert!(is_value(&ask("get key\r\n"), &format!("{value}end")));
        assert!(ask("get most\r\n").contains(&most));
        stop(&mut server);
        assert!(scratch.succeeds(&["check"]).contains("no damage"));
    }
    assert_eq!(scratch.succeeds(&["scan", "--keyspace", "blobs", "--from", "most"]), format!("most\t{most}\n"));
}

/// Sends a script to a socket of a server, and returns all that came back.
pub fn exchange(scratch: &Scratch, socket: &str, script: &str) -> String {
    let mut client = UnixStream::connect(scratch.join(socket)).unwrap();
    client.write_all(format!("{script}quit\r\n").as_bytes()).unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn clients_of_each_listener_see_and_flush_their_own_keyspace() {
    let scratch = new_scratch("listeners");
    for keyspace in ["a", "b"] {
        scratch.succeeds(&["keyspace", "create", keyspace]);
    }
    let [x, y] = ["x", "y"].map(|socket| format!("unix:{}", scratch.path(socket)));
    // A port that nobody else asks for while this runs.
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    for options in [&["--sync", "always"][..], &["--sync", "everysec", "--tier", "4MiB"]] {
        let words = ["--memcached", &x, "--keyspace", "a", "--memcached", &y, "--keyspace", "b", "--udp", &port];
        let mut server = serve(&scratch, &[&words, options].concat());
        let (at_x, at_y) =
            (|script: &str| exchange(&scratch, "x", script), |script: &str| exchange(&scratch, "y", script));
        assert_eq!(at_x("set key 0 0 4\r\nof a\r\nset only 0 0 1\r\n1\r\n"), "STORED\r\nSTORED\r\n");
        assert_eq!(at_y("get key only\r\nset key 0 0 4\r\nof b\r\n"), "END\r\nSTORED\r\n");
        // Twice, and by each dialect: the second time from DRAM, where there is a tier.
        for _ in 0..2 {
            assert_eq!(at_x("get key only\r\n"), "VALUE key 0 4\r\nof a\r\nVALUE only 0 1\r\n1\r\nEND\r\n");
            assert_eq!(
                at_y("get key\r\nmg key v\r\nget only\r\n"),
                "VALUE key 0 4\r\nof b\r\nEND\r\nVA 4\r\nof b\r\nEND\r\n"
            );
        }
        assert!(at_x("stats\r\n").contains("STAT keyspace a\r\n") && at_y("stats\r\n").contains("STAT keyspace b\r\n"));
        assert!(at_x("stats\r\n").contains("STAT curr_items 2\r\n"));
        assert!(at_y("stats\r\n").contains("STAT curr_items 1\r\n"));
        assert_ne!(at_x("stats inspect key\r\n"), at_y("stats inspect key\r\n"));
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        udp.send_to(b"\0\x07\0\0\0\x01\0\0get key\r\n", format!("127.0.0.1:{port}")).unwrap();
        let mut answer = [0; 256];
        let bytes = udp.recv(&mut answer).unwrap();
        assert!(answer[..bytes].ends_with(b"VALUE key 0 4\r\nof a\r\nEND\r\n"), "the first listener's");
        assert_eq!(at_x("flush_all\r\nget key\r\n"), "OK\r\nEND\r\n");
        assert_eq!(at_y("get key\r\n"), "VALUE key 0 4\r\nof b\r\nEND\r\n");
        stop(&mut server);
        assert_eq!(scratch.succeeds(&["list", "--keyspace", "a"]), "");
        assert_eq!(scratch.succeeds(&["get", "key", "--keyspace", "b"]), "of b");
        scratch.succeeds(&["delete", "key", "--keyspace", "b"]);
        assert_eq!(scratch.succeeds(&["list"]), "");
    }
}

#[test]
fn a_name_with_a_space_is_one_word_of_the_figures() {
    let scratch = new_scratch("words");
    scratch.succeeds(&["keyspace", "create", "my space"]);
    scratch.succeeds(&["keyspace", "create", "disk a", "--block-device", "1MiB"]);
    assert!(scratch.succeeds(&["stats"]).contains("\nkeyspace_items:my%20space 0\n"));
    let [socket, disks] = ["socket", "disks"].map(|name| format!("unix:{}", scratch.path(name)));
    let mut server = serve(&scratch, &["--memcached", &socket, "--keyspace", "my space", "--nbd", &disks]);
    let figures = exchange(&scratch, "socket", "stats\r\nstats settings\r\n");
    stop(&mut server);
    let words_of = |line: &str| line.split(' ').count();
    assert_eq!(figures.lines().find(|line| *line != "END" && words_of(line) != 3), None);
    assert!(figures.contains("STAT keyspace my%20space\r\n"), "{figures}");
    assert!(figures.contains("STAT device:disk%20a:reads 0\r\n"), "{figures}");
}

#[test]
fn a_server_refuses_keyspaces_that_do_not_fit_its_listeners_or_its_store() {
    let scratch = new_scratch("unfit");
    let [x, y] = ["x", "y"].map(|socket| format!("unix:{}", scratch.path(socket)));
    let error = scratch.fails(&["serve", "--memcached", &x, "--keyspace", "a"]);
    assert!(error.contains("there is no store at") && error.contains("tapetum keyspace create"), "{error}");
    assert!(!scratch.join("data").exists());
    scratch.succeeds(&["keyspace", "create", "a"]);
    let error = scratch.fails(&["serve", "--memcached", &x, "--keyspace", "none"]);
    assert!(error.contains("no keyspace \"none\": `tapetum keyspace list`"), "{error}");
    let three = ["--keyspace", "a", "--keyspace", "a", "--keyspace", "a"];
    let error = scratch.fails(&[&["serve", "--memcached", &x, "--memcached", &y][..], &three].concat());
    assert!(error.contains("--keyspace is given 3 times, and --memcached 2 times"), "{error}");
    // Once is for all.
    let mut server = serve(&scratch, &["--memcached", &x, "--memcached", &y, "--keyspace", "a"]);
    assert_eq!(exchange(&scratch, "x", "set key 0 0 1\r\n1\r\n"), "STORED\r\n");
    assert_eq!(exchange(&scratch, "y", "get key\r\n"), "VALUE key 0 1\r\n1\r\nEND\r\n");
    stop(&mut server);
    // Dropped and created again, it is empty.
    scratch.succeeds(&["keyspace", "drop", "a", "--yes"]);
    scratch.succeeds(&["keyspace", "create", "a"]);
    let mut server = serve(&scratch, &["--memcached", &x, "--keyspace", "a"]);
    assert_eq!(exchange(&scratch, "x", "get key\r\n"), "END\r\n");
    stop(&mut server);
}

#[test]
fn a_mistyped_place_makes_no_store() {
    let scratch = new_scratch("mistyped");
    let typo = scratch.path("typo");
    for words in [&["keyspace", "create", "x", "--data", &typo][..], &["generate", "papers", "--into", &typo]] {
        let output = tapetum(words).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains("there is no store at"), "{words:?}: {error}");
        assert!(!fs::exists(&typo).unwrap(), "{words:?}");
    }
    let small = ["--create", "--capacity", "64MiB", "--memory", "32MiB", "--data", &typo];
    succeeded(tapetum(&[&["keyspace", "create", "x"][..], &small].concat()).output().unwrap());
}

#[test]
fn what_would_be_dropped_is_told_before_it_is() {
    let scratch = new_scratch("unsure");
    scratch.succeeds(&["keyspace", "create", "orders"]);
    scratch.succeeds(&["keyspace", "create", "disk", "--block-device", "1MiB"]);
    scratch.succeeds(&["put", "a", "1", "--keyspace", "orders"]);
    let before = drive(&scratch);
    let error = scratch.fails(&["keyspace", "drop", "orders"]);
    assert!(error.contains("orders is a hashed keyspace with 1 item") && error.contains("--yes"), "{error}");
    let error = scratch.fails(&["keyspace", "drop", "disk"]);
    assert!(error.contains("disk is a block device of 1 MiB"), "{error}");
    assert!(scratch.fails(&["keyspace", "drop", "order"]).contains("did you mean"));
    assert_eq!(drive(&scratch), before);
    scratch.succeeds(&["keyspace", "drop", "orders", "--yes"]);
    assert_eq!(keyspaces(&scratch), ["default", "disk"]);
}

#[test]
fn the_list_has_as_many_items_as_a_scan_finds() {
    let scratch = new_scratch("counts");
    scratch.succeeds(&["keyspace", "create", "a"]);
    scratch.succeeds(&["keyspace", "create", "b", "--index", "ordered"]);
    // More keys than write buffers of this store take, written over and deleted in part.
    for keyspace in ["a", "b", "default"] {
        let file = scratch.path("items.tsv");
        for round in 0..3 {
            let lines: String =
                (0..12_000).map(|key| format!("{}\t{key}-{round}\n", key * (round + 1) % 17_000)).collect();
            fs::write(&file, lines).unwrap();
            scratch.succeeds(&["load", &file, "--keyspace", keyspace]);
        }
        scratch.succeeds(&["put", "one more", "1", "--keyspace", keyspace]);
        scratch.succeeds(&["delete", "7", "--keyspace", keyspace]);
    }
    for line in sorted_lines(&scratch, &["keyspace", "list"]) {
        let mut parts = line.split('\t');
        let (name, items) = (parts.next().unwrap(), parts.nth(1).unwrap().to_owned());
        let found = scratch.succeeds(&["list", "--keyspace", name]).lines().count();
        assert_eq!(items, found.to_string(), "{name}");
        let shown = scratch.succeeds(&["keyspace", "show", name]);
        let expired = if name == "b" { ", expired ones included" } else { "" };
        assert!(shown.contains(&format!("items   {items}{expired}\n")), "{shown}");
    }
}
