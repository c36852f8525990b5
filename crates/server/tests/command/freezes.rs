//! Freezes from outside: moments of a served store that stay, whatever is written, dropped and made meanwhile.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use tapetum_service::asked::Asked;
use tapetum_service::caller::Gathering;
use tapetum_service::reply::Reply;
use tapetum_service::request::{Freeze, Request};
use tapetum_service::socket::client::Connection;

use crate::keyspaces::serve;
use crate::outside::{Scratch, Served, stop};

/// Items of each keyspace.
const ITEMS: usize = 2000;

fn new_scratch(name: &str) -> Scratch {
    Scratch::new(&format!("freezes-{name}"), |command, words, data| {
        command.arg("--data").arg(data);
        match words {
            ["serve", ..] => command.args(["--memory", "64MiB", "--capacity", "256MiB"]),
            _ => command,
        };
    })
}

/// A server for commands alone.
fn serve_commands(scratch: &Scratch) -> Child {
    let mut command = scratch.command(&["serve", "--threads", "1", "--memcached", "none"]);
    Served::start_when(&mut command, "to commands at").child
}

/// Sets keys of a served keyspace until it is told to stop.
fn write_on(scratch: &Scratch, socket: &str, is_over: &Arc<AtomicBool>) -> JoinHandle<u64> {
    let stream = UnixStream::connect(scratch.join(socket)).unwrap();
    let is_over = is_over.clone();
    std::thread::spawn(move || {
        let (mut answers, mut stream, mut sets) = (BufReader::new(stream.try_clone().unwrap()), stream, 0);
        while !is_over.load(Ordering::Relaxed) {
            let value = format!("changed{sets}");
            let key = sets as usize * 7 % (2 * ITEMS);
            write!(stream, "set key{key:05} 0 0 {}\r\n{value}\r\n", value.len()).unwrap();
            let mut answer = String::new();
            // A keyspace that was dropped takes none.
            answers.read_line(&mut answer).unwrap();
            sets += 1;
        }
        sets
    })
}

fn id_of(created: &str) -> &str {
    created.strip_suffix('\n').unwrap()
}

/// Reads a freeze in each way, and returns what each printed.
fn seen(scratch: &Scratch, id: &str) -> Vec<String> {
    let fields = "key: k string; value: v string";
    let commands: [&[&str]; 9] = [
        &["keyspace", "list", "--freeze", id],
        &["dump", "--keyspace", "ordered", "--freeze", id],
        &["dump", "--keyspace", "hashed", "--freeze", id],
        &["list", "--keyspace", "ordered", "--long", "--prefix", "key000", "--freeze", id],
        &["scan", "ordered", "--reverse", "--limit", "100", "--freeze", id],
        &["scan", "ordered", "--count", "--freeze", id],
        &["scan", "ordered", "--fields", fields, "--select", "count(*), max(k)", "--freeze", id],
        &["scan", "hashed", "--fields", fields, "--where", "v = 'first'", "--select", "count(*)", "--freeze", id],
        &["graph", "bc", "--edges", "from edges", "--format", "csv", "--freeze", id],
    ];
    commands.iter().map(|words| scratch.succeeds(words)).collect()
}

#[test]
fn a_freeze_shows_the_same_under_writes_and_after_a_drop() {
    let scratch = new_scratch("same");
    let sockets = ["hashed", "ordered"].map(|name| (name, format!("unix:{}", scratch.path(name))));
    let mut server = serve_commands(&scratch);
    let make = || {
        scratch.succeeds(&["keyspace", "create", "hashed"]);
        scratch.succeeds(&["keyspace", "create", "ordered", "--index", "ordered"]);
    };
    make();
    scratch.succeeds(&["keyspace", "create", "edges", "--index", "ordered"]);
    scratch.succeeds(&["keyspace", "format", "edges", "key: source u8, target u8"]);
    scratch.asks_of(&["load", "--keyspace", "edges"], b"\\x01\\x02\t\n\\x02\\x03\t\n\\x03\\x04\t\n");
    stop(&mut server);
    let listeners: Vec<&str> = sockets.iter().flat_map(|(name, at)| ["--memcached", at, "--keyspace", name]).collect();
    let mut server = serve(&scratch, &listeners);
    let items: String = (0..ITEMS).map(|item| format!("key{item:05}\tfirst\n")).collect();
    for name in ["hashed", "ordered"] {
        scratch.asks_of(&["load", "--keyspace", name], items.as_bytes());
    }
    let is_over = Arc::default();
    let writers = ["hashed", "ordered"].map(|socket| write_on(&scratch, socket, &is_over));
    sleep(Duration::from_millis(100));
    let created = scratch.succeeds(&["freeze", "create", "--for", "10m"]);
    let id = id_of(&created);
    let first = seen(&scratch, id);
    assert_eq!(first[0].lines().count(), 4, "{}", first[0]);
    assert!(first[0].contains("ordered\tordered\t-\n") && first[8].lines().count() > 4, "{first:?}");
    assert!(first[1].lines().count() >= ITEMS && first[2].lines().count() >= ITEMS);
    assert_ne!(scratch.succeeds(&["dump", "--keyspace", "ordered"]), first[1], "nothing was written");
    assert_eq!(seen(&scratch, id), first);
    for name in ["hashed", "ordered", "edges"] {
        scratch.succeeds(&["keyspace", "drop", name, "--yes"]);
    }
    make();
    scratch.succeeds(&["put", "new", "1", "--keyspace", "ordered"]);
    sleep(Duration::from_millis(300));
    assert_eq!(seen(&scratch, id), first);
    is_over.store(true, Ordering::Relaxed);
    assert!(writers.map(|writer| writer.join().unwrap()).iter().all(|sets| *sets > 100));
    let wrong = scratch.fails(&["dump", "--keyspace", "orderd", "--freeze", id]);
    assert!(wrong.contains("did you mean \"ordered\"?") && wrong.contains("keyspace list --freeze"), "{wrong}");
    stop(&mut server);
}

#[test]
fn freezes_are_listed_renewed_and_released() {
    let scratch = new_scratch("list");
    let mut server = serve_commands(&scratch);
    assert_eq!(scratch.succeeds(&["freeze", "list"]), "");
    scratch.succeeds(&["put", "key", "value"]);
    let (created, told) =
        scratch.asks(&["freeze", "create", "--owner", "nightly dump", "--for", "1h", "--flash", "8MiB"]);
    let id = id_of(&created);
    assert!(told.contains("\"nightly dump\"") && told.contains(&format!("--freeze {id}")), "{told}");
    scratch.succeeds(&["put", "key", "other"]);
    let listed = scratch.succeeds(&["freeze", "list"]);
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[0].starts_with("id ") && lines[1].starts_with(id), "{listed}");
    assert!(lines[1].contains("nightly dump") && lines[1].contains("59 min"), "{listed}");
    assert_eq!(
        scratch.succeeds(&["freeze", "renew", id, "--for", "2h"]),
        format!("freeze {id} lasts 1 h 59 min from now on\n")
    );
    let json: serde_json::Value = serde_json::from_str(&scratch.succeeds(&["freeze", "list", "--json"])).unwrap();
    assert_eq!((json[0]["keyspaces"].as_u64(), json[0]["owner"].as_str()), (Some(1), Some("nightly dump")));
    let stats = scratch.succeeds(&["stats"]);
    for figure in
        ["\nfreezes 1\n", "\nfreeze_flash_bytes ", "\nfreeze_memory_bytes ", "\nfreeze_age_us ", "\nfreeze_pause_us "]
    {
        assert!(stats.contains(figure), "{figure}: {stats}");
    }
    assert!(scratch.succeeds(&["inspect", "--map"]).contains(&format!("\nfreeze {id} keeps ")));
    assert_eq!(scratch.succeeds(&["dump", "--format", "tsv", "--freeze", id]), "key\tvalue\n");
    assert_eq!(scratch.succeeds(&["freeze", "release", id]), format!("freeze {id} was released\n"));
    assert_eq!(scratch.succeeds(&["freeze", "list"]), "");
    assert!(scratch.succeeds(&["stats"]).contains("\nfreezes 0\n"));
    let commands: [&[&str]; 3] = [&["dump", "--freeze", id], &["freeze", "renew", id], &["freeze", "release", id]];
    for words in commands {
        let ended = scratch.fails(words);
        assert!(ended.contains(&format!("freeze {id} has ended: it was released")), "{ended}");
        assert!(ended.contains("tapetum freeze create"), "{ended}");
    }
    for words in [&["list", "--freeze", "7"][..], &["freeze", "release", "7"]] {
        let unknown = scratch.fails(words);
        assert!(unknown.contains("there is no freeze 7") && unknown.contains("tapetum freeze list"), "{unknown}");
    }
    let wrong = scratch.fails(&["freeze", "create", "--owner", ""]);
    assert!(wrong.contains("another --owner"), "{wrong}");
    for time in ["25h", "0s", "1", "soon"] {
        let refused = scratch.run(&["freeze", "create", "--for", time]);
        assert_eq!(refused.status.code(), Some(2), "{time}");
    }
    stop(&mut server);
}

#[test]
fn a_freeze_whose_owner_is_gone_ends_by_its_time() {
    let scratch = new_scratch("time");
    let mut server = serve_commands(&scratch);
    scratch.succeeds(&["put", "key", "value"]);
    let created = scratch.succeeds(&["freeze", "create", "--for", "300ms"]);
    while !scratch.succeeds(&["freeze", "list"]).is_empty() {
        sleep(Duration::from_millis(20));
    }
    let ended = scratch.fails(&["dump", "--freeze", id_of(&created)]);
    assert!(ended.contains("its time was over") && ended.contains("--for"), "{ended}");
    stop(&mut server);
    // Another life of the server has no freeze of the one before.
    let mut server = serve_commands(&scratch);
    let unknown = scratch.fails(&["dump", "--freeze", id_of(&created)]);
    assert!(unknown.contains("the server was started since"), "{unknown}");
    stop(&mut server);
}

#[test]
fn a_client_gets_no_more_freezes_than_an_owner_may_have() {
    let scratch = new_scratch("many");
    let mut server = serve_commands(&scratch);
    let mut connection = Connection::open(&scratch.join("data/tapetum.sock")).unwrap().unwrap();
    let mut freeze = |owner: &str| {
        let mut told = Gathering::default();
        let request = Request::Freeze(Freeze { owner: owner.into(), lasts_ms: 60_000, flash_bytes_max: None });
        connection.call(&request, &mut told).map(|()| told.replies.pop())
    };
    let (mut made, mut refused) = (0, 0);
    for _ in 0..1000 {
        match freeze("one client") {
            Ok(Some(Reply::Freezes(rows))) => made += rows.len(),
            Err(failure) => {
                assert!(
                    failure.message.contains("\"one client\" has 8 freezes, as many as one owner may have"),
                    "{failure}"
                );
                assert!(failure.message.contains("tapetum freeze release ID"), "{failure}");
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((made, refused), (tapetum::FREEZES_OF_OWNER_MAX, 1000 - tapetum::FREEZES_OF_OWNER_MAX));
    let refusal = (0..100).find_map(|owner| freeze(&format!("owner {owner}")).err()).unwrap();
    assert!(refusal.message.contains("the store has 64 freezes, and takes no more"), "{refusal}");
    assert_eq!(scratch.succeeds(&["freeze", "list"]).lines().count(), 1 + tapetum::FREEZES_MAX);
    scratch.succeeds(&["put", "key", "value"]);
    stop(&mut server);
}

#[test]
fn commands_on_a_store_that_is_not_served_say_what_to_do() {
    let scratch = new_scratch("closed");
    let mut server = serve_commands(&scratch);
    stop(&mut server);
    let commands: [&[&str]; 8] = [
        &["freeze", "create"],
        &["freeze", "list"],
        &["freeze", "renew", "7"],
        &["freeze", "release", "7"],
        &["list", "--freeze", "7"],
        &["dump", "--freeze", "7"],
        &["scan", "default", "--freeze", "7"],
        &["keyspace", "list", "--freeze", "7"],
    ];
    for words in commands {
        let told = scratch.fails(words);
        assert!(
            told.contains("a freeze lives in a running server") && told.contains("start `tapetum serve`"),
            "{told}"
        );
    }
}
