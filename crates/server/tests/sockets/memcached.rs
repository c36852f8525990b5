//! The server over real sockets and a store that answers late and in any order: what clients see of ordering,
//! limits, shutdown and of each other.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::late_store::{cold_key, late_store, late_store_on_flash};
use crate::test_server::{TestServer, hit, set};
use tapetum::{Error, KeyspaceRef};
use tapetum_drive::{Faults, Opcode};
use tapetum_server::doors::options::Options;
use tapetum_server::net::limits::Limits;
use tapetum_server::net::listen::Address;
use tapetum_server::server::Server;
use tapetum_server::store::store_slot::StoreSlot;
use tapetum_service::inspect_lines;

fn options(addresses: Vec<Address>) -> Options {
    Options { threads: 1, ..Options::at(addresses) }
}

fn late_slot() -> Arc<StoreSlot> {
    Arc::new(StoreSlot::new(late_store()))
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    tapetum_drive::SplitMix64::new(seed).bytes(length)
}

#[track_caller]
fn assert_same(actual: &[u8], expected: &[u8]) {
    let differ = actual.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(actual.len().min(expected.len()));
    let around = |bytes: &[u8]| {
        String::from_utf8_lossy(&bytes[differ.saturating_sub(40)..bytes.len().min(differ + 40)]).into_owned()
    };
    assert!(
        actual == expected,
        "differ at {differ} of {} and {}: {:?} not {:?}",
        actual.len(),
        expected.len(),
        around(actual),
        around(expected)
    );
}

#[test]
fn a_pipeline_is_answered_in_its_order() {
    let (flash, store) = late_store_on_flash();
    let bench = TestServer::over(store, Limits::default());
    let reads_before = flash.submitted(Opcode::Read);
    let (mut script, mut expected) = (Vec::new(), Vec::new());
    for index in 0..3000u32 {
        let key = format!("k{}", index % 50);
        let value = noise(u64::from(index), index as usize % 90);
        script.extend(set(&key, &value));
        expected.extend(b"STORED\r\n");
        // A value that flash brings late, among others that are there.
        let cold = cold_key(index as usize);
        script.extend(format!("get none {key} {cold} none\r\n").bytes());
        expected.extend(hit(&key, &value).strip_suffix(b"END\r\n").unwrap());
        expected.extend(hit(&cold, cold.as_bytes()));
        if index % 7 == 0 {
            script.extend(format!("delete {key} noreply\r\nfoo\r\nget {key}\r\n").bytes());
            expected.extend(b"ERROR\r\nEND\r\n");
        }
    }
    assert_same(&bench.exchange(&script), &expected);
    assert!(flash.submitted(Opcode::Read) > reads_before, "no value came from flash");
}

#[test]
fn a_flush_and_the_figures_see_all_before_and_nothing_after() {
    let bench = TestServer::new(Limits::default());
    let (mut script, mut expected) = (Vec::new(), Vec::new());
    for round in 0..50 {
        for index in 0..20 {
            script.extend(set(&format!("k{index}"), b"v"));
            expected.extend(b"STORED\r\n");
        }
        script.extend(b"flush_all\r\nget k0 k7 k19\r\n");
        expected.extend(b"OK\r\nEND\r\n");
        script.extend(set(&format!("k{round}"), b"w"));
        expected.extend(b"STORED\r\n");
        script.extend(format!("get k{round}\r\nflush_all noreply\r\nget k{round}\r\n").bytes());
        expected.extend(hit(&format!("k{round}"), b"w"));
        expected.extend(b"END\r\n");
    }
    assert_same(&bench.exchange(&script), &expected);
}

#[test]
fn a_failed_get_says_so_once_and_the_next_is_whole() {
    let (flash, store) = late_store_on_flash();
    let bench = TestServer::over(store, Limits::default());
    flash.set_faults(Faults { read_one_in: 1, ..Faults::default() });
    let script = [set("a", b"1"), b"get a cold1 a cold2\r\nget a\r\n".to_vec()].concat();
    let reply = String::from_utf8(bench.exchange(&script)).unwrap();
    assert!(reply.starts_with("STORED\r\nVALUE a 0 1\r\n1\r\nSERVER_ERROR the drive failed"), "{reply}");
    assert!(reply.ends_with("log\r\nVALUE a 0 1\r\n1\r\nEND\r\n"), "{reply}");
    assert_eq!(reply.matches("SERVER_ERROR").count(), 1);
}

#[test]
fn many_clients_each_get_their_own() {
    let bench = TestServer::new(Limits::default());
    thread::scope(|scope| {
        for client in 0..24u64 {
            let bench = &bench;
            scope.spawn(move || {
                let mut stream = BufReader::new(bench.client());
                for round in 0..60u64 {
                    let (key, value) =
                        (format!("c{client}"), noise(client * 1000 + round, (round * 37 % 5000) as usize));
                    stream
                        .get_mut()
                        .write_all(&[set(&key, &value), format!("get {key}\r\n").into_bytes()].concat())
                        .unwrap();
                    let expected = [b"STORED\r\n".to_vec(), hit(&key, &value)].concat();
                    let mut reply = vec![0; expected.len()];
                    stream.read_exact(&mut reply).unwrap();
                    assert_same(&reply, &expected);
                }
            });
        }
    });
}

/// More than a worker takes in one report, some of whom hang up meanwhile; what the store must be asked for comes among what is
/// answered at once.
#[test]
fn a_crowd_that_speaks_at_once_is_answered_each_its_own() {
    let bench = TestServer::new(Limits::default());
    let mut crowd: Vec<_> = (0..160).map(|_| BufReader::new(bench.client())).collect();
    for round in 0..20 {
        for (number, client) in crowd.iter_mut().enumerate() {
            let key = format!("c{number}");
            let asked = match number % 4 {
                0 => [set(&key, key.as_bytes()), format!("get {key}\r\n").into_bytes()].concat(),
                _ => b"mn\r\nversion\r\n".to_vec(),
            };
            client.get_mut().write_all(&asked).unwrap();
        }
        for (number, client) in crowd.iter_mut().enumerate() {
            if (number + round) % 40 == 1 {
                // It does not wait for its answer, and another one takes its place.
                *client = BufReader::new(bench.client());
                continue;
            }
            let key = format!("c{number}");
            let expected = match number % 4 {
                0 => [b"STORED\r\n".to_vec(), hit(&key, key.as_bytes())].concat(),
                _ => format!("MN\r\nVERSION {}\r\n", tapetum_server::protocol::VERSION).into_bytes(),
            };
            let mut reply = vec![0; expected.len()];
            client.read_exact(&mut reply).unwrap();
            assert_same(&reply, &expected);
        }
    }
    crowd.iter_mut().for_each(|client| client.get_mut().write_all(b"version\r\n").unwrap());
    bench.stop();
}

#[test]
fn the_largest_value_goes_both_ways() {
    let bench = TestServer::new(Limits::default());
    let value = noise(7, 16 << 20);
    let reply = bench.exchange(&[set("large", &value), b"get large\r\n".to_vec()].concat());
    assert_same(&reply, &[b"STORED\r\n".to_vec(), hit("large", &value)].concat());
}

/// Far less memory than the clients send at once: they take turns, and none is lost.
#[test]
fn half_sent_values_do_not_wait_for_each_other() {
    let limits = Limits { in_flight_bytes: 300 << 10, ..Limits::default() };
    let bench = TestServer::new(limits);
    let values: Vec<_> = (0..12).map(|client| noise(client, 200 << 10)).collect();
    let mut clients: Vec<_> = values.iter().map(|_| bench.client()).collect();
    let scripts: Vec<_> = values.iter().enumerate().map(|(at, value)| set(&format!("k{at}"), value)).collect();
    // Small enough for the sockets' own buffers, so that this does not block.
    for (client, script) in clients.iter_mut().zip(&scripts) {
        client.write_all(&script[..100 << 10]).unwrap();
    }
    thread::scope(|scope| {
        for (client, script) in clients.iter_mut().zip(&scripts) {
            scope.spawn(move || {
                client.write_all(&script[100 << 10..]).unwrap();
                let mut reply = [0; 8];
                client.read_exact(&mut reply).unwrap();
                assert_eq!(&reply, b"STORED\r\n");
            });
        }
    });
    for (at, value) in values.iter().enumerate() {
        assert_same(&bench.exchange(format!("get k{at}\r\n").as_bytes()), &hit(&format!("k{at}"), value));
    }
}

#[test]
fn a_client_that_does_not_read_costs_the_others_nothing() {
    let limits = Limits { in_flight_bytes: 4 << 20, connection_in_flight_bytes: 1 << 20, ..Limits::default() };
    let bench = TestServer::new(limits);
    let value = noise(1, 300 << 10);
    assert_eq!(bench.exchange(&set("big", &value)), b"STORED\r\n");
    let mut lazy = bench.client();
    // 120 MB of replies.
    lazy.write_all(&b"get big\r\n".repeat(400)).unwrap();
    for round in 0..50 {
        let key = format!("k{round}");
        let reply = bench.exchange(&[set(&key, b"v"), format!("get {key}\r\n").into_bytes()].concat());
        assert_same(&reply, &[b"STORED\r\n".to_vec(), hit(&key, b"v")].concat());
    }
    let one = hit("big", &value);
    let mut reply = vec![0; one.len()];
    for _ in 0..400 {
        lazy.read_exact(&mut reply).unwrap();
        assert_same(&reply, &one);
    }
}

#[test]
fn a_client_that_sits_on_memory_is_closed_when_others_wait() {
    let limits = Limits { in_flight_bytes: 100 << 10, stall_seconds: 1, ..Limits::default() };
    let bench = TestServer::new(limits);
    let value = noise(3, 400 << 10);
    // Both hold memory: the second goes over the budget and never ends.
    let mut sitting: Vec<_> = (0..2).map(|_| bench.client()).collect();
    for client in &mut sitting {
        client.write_all(&set("never", &value)[..200 << 10]).unwrap();
    }
    assert_eq!(bench.exchange(&set("k", &value)), b"STORED\r\n");
}

#[test]
fn clients_over_the_limit_are_told() {
    let bench = TestServer::new(Limits { connections: 3, ..Limits::default() });
    let mut clients: Vec<_> = (0..3).map(|_| bench.client()).collect();
    for client in &mut clients {
        client.write_all(b"version\r\n").unwrap();
        assert_eq!(client.read(&mut [0; 8]).unwrap(), 8);
    }
    let mut reply = String::new();
    bench.client().read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "ERROR Too many open connections\r\n");
    drop(clients.pop());
    // The place is free once the server has seen the client go.
    loop {
        let mut client = BufReader::new(bench.client());
        // A refused client may be gone before it has spoken.
        let _ = client.get_mut().write_all(b"version\r\n");
        let mut line = String::new();
        if client.read_line(&mut line).is_ok() && line.starts_with("VERSION") {
            break;
        }
    }
}

#[test]
fn a_get_of_five_megabytes_takes_little_memory_and_is_answered_in_its_order() {
    let bench = TestServer::new(Limits { in_flight_bytes: 1 << 20, ..Limits::default() });
    let absent: String = (0..100_000).map(|key| format!(" absent-{key:0>18}")).collect();
    let absent_more = " absent".repeat(300_000);
    let script = [
        set("a", b"1"),
        format!("get a{absent} a{absent_more} a\r\nversion\r\n").into_bytes(),
        // A bad key late in the line: what was answered before it stands, the rest is thrown away.
        format!("get a{absent} {} a{absent}\r\nget a\r\n", "k".repeat(251)).into_bytes(),
    ];
    let value = "VALUE a 0 1\r\n1\r\n";
    let version = tapetum_server::protocol::VERSION;
    let bad = "CLIENT_ERROR bad command line format\r\n";
    let expected = format!("STORED\r\n{}END\r\nVERSION {version}\r\n{value}{bad}{value}END\r\n", value.repeat(3));
    let mut client = bench.client();
    let mut writer = client.try_clone().unwrap();
    let writes = thread::spawn(move || {
        writer.write_all(&script.concat()).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut reply = Vec::new();
    client.read_to_end(&mut reply).unwrap();
    writes.join().unwrap();
    assert_same(&reply, expected.as_bytes());
}

#[test]
fn a_line_that_is_too_long_is_answered_and_nothing_behind_it_is_done() {
    let bench = TestServer::new(Limits::default());
    assert_eq!(bench.exchange(&set("a", b"1")), b"STORED\r\n");
    for length in [3000, 3 << 20] {
        let mut client = bench.client();
        let line = [b"set ", &b"k".repeat(length)[..], b" 0 0 11\r\n"].concat();
        client.write_all(&[&line[..], b"flush_all\r\n\r\ndelete a\r\n"].concat()).unwrap();
        let mut reply = String::new();
        client.read_to_string(&mut reply).unwrap();
        assert_eq!(reply, "CLIENT_ERROR line too long\r\n");
    }
    assert_same(&bench.exchange(b"get a\r\n"), &hit("a", b"1"));
}

#[test]
fn nothing_behind_a_line_of_http_is_done() {
    let bench = TestServer::new(Limits::default());
    assert_eq!(bench.exchange(&set("a", b"1")), b"STORED\r\n");
    for line in ["POST / HTTP/1.1", "DELETE HTTP/1.1", "GET /a b HTTP/1.1", "post / HTTP/1.1", "Host: localhost"] {
        let reply = bench.exchange(format!("get a\r\n{line}\r\nHost: x\r\n\r\ndelete a\r\n").as_bytes());
        assert_same(&reply, &hit("a", b"1"));
    }
    assert_same(&bench.exchange(b"get a\r\n"), &hit("a", b"1"));
}

#[test]
fn clients_that_ask_for_nothing_make_room_for_others() {
    let bench = TestServer::new(Limits { connections: 3, idle_seconds: 1, ..Limits::default() });
    let mut idle: Vec<_> = (0..3).map(|_| bench.client()).collect();
    idle[0].write_all(b"version\r\n").unwrap();
    idle[1].write_all(b"get half").unwrap();
    for client in &mut idle {
        let mut reply = Vec::new();
        client.read_to_end(&mut reply).unwrap();
        assert!(reply.is_empty() || reply.starts_with(b"VERSION"));
    }
    let figures = String::from_utf8(bench.exchange(b"stats\r\n")).unwrap();
    assert!(figures.contains("STAT idle_kicks 3\r\n"), "{figures}");
    assert!(figures.contains("STAT log_lines_dropped 0\r\n"), "{figures}");
}

#[test]
fn bad_input_disturbs_nobody() {
    let bench = TestServer::new(Limits::default());
    assert_eq!(bench.exchange(&set("good", b"value")), b"STORED\r\n");
    thread::scope(|scope| {
        for attacker in 0..4u64 {
            let bench = &bench;
            scope.spawn(move || {
                for round in 0..60u64 {
                    let mut bytes = noise(attacker * 100 + round, (round * 811 % 70_000) as usize);
                    if round % 3 == 0 {
                        bytes.insert(0, 0x80);
                    }
                    let mut client = bench.client();
                    // The server may hang up at any point.
                    let _ = client.write_all(&bytes);
                    if round % 2 == 0 {
                        let _ = client.shutdown(Shutdown::Write);
                        let _ = client.read_to_end(&mut Vec::new());
                    }
                }
            });
        }
        let mut good = BufReader::new(bench.client());
        for _ in 0..300 {
            good.get_mut().write_all(b"get good\r\n").unwrap();
            let expected = hit("good", b"value");
            let mut reply = vec![0; expected.len()];
            good.read_exact(&mut reply).unwrap();
            assert_same(&reply, &expected);
        }
    });
}

#[test]
fn what_has_come_is_served_before_a_stop() {
    let bench = TestServer::new(Limits::default());
    let mut client = bench.client();
    let mut script = Vec::new();
    for index in 0..200 {
        script.extend(set(&format!("k{index}"), b"v"));
    }
    client.write_all(&script).unwrap();
    // The first reply shows that the script has arrived; it is one write.
    let mut first = [0; 8];
    client.read_exact(&mut first).unwrap();
    bench.stop();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_same(&rest, &b"STORED\r\n".repeat(199));
}

#[test]
fn unix_sockets_speak_both_protocols_too() {
    let path = std::env::temp_dir().join(format!("tapetum-sockets-{}", std::process::id()));
    let addresses = vec![Address::Unix(path.clone()), "127.0.0.1:0".parse().unwrap()];
    let options = self::options(addresses);
    let server = Server::start(late_slot(), options).unwrap();
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(&[set("a", b"1"), b"get a\r\nquit\r\n".to_vec()].concat()).unwrap();
    let mut reply = Vec::new();
    client.read_to_end(&mut reply).unwrap();
    assert_same(&reply, &[b"STORED\r\n".to_vec(), hit("a", b"1")].concat());
    let mut client = UnixStream::connect(&path).unwrap();
    let mut noop = [0u8; 24];
    (noop[0], noop[1]) = (0x80, 0x0a);
    client.write_all(&noop).unwrap();
    client.read_exact(&mut noop).unwrap();
    assert_eq!((noop[0], noop[1]), (0x81, 0x0a));
    server.stop().unwrap();
    assert!(!path.exists());
}

#[test]
fn a_socket_that_is_taken_is_an_error_that_names_it() {
    let bench = TestServer::new(Limits::default());
    let addresses = vec![bench.address.parse().unwrap()];
    let options = self::options(addresses);
    let error = Server::start(late_slot(), options).err().unwrap().to_string();
    assert!(error.contains(&bench.address) && error.contains("--memcached"), "{error}");
}

fn http(address: std::net::SocketAddr, request: &[u8]) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.write_all(request).unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn prometheus_sees_what_stats_says() {
    let mut options = self::options(vec!["127.0.0.1:0".parse().unwrap()]);
    options.metrics = Some("0".parse().unwrap());
    let store = late_store();
    let server = Server::start(Arc::new(StoreSlot::new(store.clone())), options).unwrap();
    let metrics: std::net::SocketAddr = server.metrics_addresses()[0].to_string().parse().unwrap();
    assert!(metrics.ip().is_loopback());
    let mut client = TcpStream::connect(server.addresses()[0].to_string()).unwrap();
    client.write_all(&[set("a", b"1"), b"get a\r\nquit\r\n".to_vec()].concat()).unwrap();
    client.read_to_end(&mut Vec::new()).unwrap();
    // More than may be there at once say nothing, or half of it, or do not read: the newest is served all the same.
    let crowd: Vec<_> = (0..150).map(|_| TcpStream::connect(metrics).unwrap()).collect();
    (&crowd[149]).write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    (&crowd[148]).write_all(b"GET /metr").unwrap();
    let reply = http(metrics, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    crowd[0].set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!((&crowd[0]).read(&mut [0; 1]).unwrap(), 0, "the oldest has made room");
    drop(crowd);
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
    let entries = format!("tapetum_index_entries {}", store.stats().index_entries);
    for line in ["tapetum_cmd_set_total 1", "# TYPE tapetum_items_total counter", &entries] {
        assert!(reply.lines().any(|found| found == line), "{line} is not in {reply}");
    }
    let head = http(metrics, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(http(metrics, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(http(metrics, b"DELETE /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert!(http(metrics, b"get a\r\n\r\n").starts_with("HTTP/1.1 400 "));
    let long = [&b"GET /"[..], &[b'x'; 9000], b" HTTP/1.1\r\n\r\n"].concat();
    assert!(http(metrics, &long).starts_with("HTTP/1.1 431 "));
    let many = [&b"GET /metrics HTTP/1.1\r\n"[..], &b"a: b\r\n".repeat(2000), b"\r\n"].concat();
    assert!(http(metrics, &many).starts_with("HTTP/1.1 431 "));
    let mut taken = self::options(vec!["127.0.0.1:0".parse().unwrap()]);
    taken.metrics = Some(metrics.to_string().parse().unwrap());
    let error = Server::start(late_slot(), taken).err().unwrap().to_string();
    assert!(error.contains(&metrics.to_string()) && error.contains("--metrics"), "{error}");
    server.stop().unwrap();
    assert!(TcpStream::connect(metrics).is_err());
}

#[test]
fn what_takes_long_is_answered_in_its_turn_and_holds_up_nobody_else() {
    let (flash, store) = late_store_on_flash();
    let front_bytes = 0x10_0000;
    let bench = TestServer::over(store.clone(), Limits { in_flight_bytes: front_bytes as usize, ..Limits::default() });
    let script = [
        set("a", b"1"),
        b"resize memory 128000000\r\nget a\r\nresize memory 5\r\nresize capacity 5 noreply\r\n".to_vec(),
        b"resize capacity 300000000\r\ncache_memlimit 128\r\ncache_memlimit 8\r\n".to_vec(),
        b"stats inspect abc\r\nget a\r\n".to_vec(),
    ];
    let too_few = |bytes: u64| {
        let refused = store.resize_memory(bytes.saturating_sub(front_bytes));
        let Err(Error::TooLittleMemory { least_bytes, needed_for, .. }) = refused else { panic!("{refused:?}") };
        let error = Error::TooLittleMemory {
            memory_bytes: bytes,
            least_bytes: least_bytes + front_bytes,
            needed_for: format!("{needed_for}, beside the 1MiB of the front doors"),
        };
        error.to_string()
    };
    let located = inspect_lines::location_lines(&tapetum::locate(&store, KeyspaceRef::DEFAULT, b"abc").unwrap());
    let located: String = located.iter().map(|(name, value)| format!("STAT {name} {value}\r\n")).collect();
    assert!(located.contains("STAT hash_key ") && located.contains("STAT place nowhere\r\n"), "{located}");
    let expected = [
        b"STORED\r\nOK\r\n".to_vec(),
        hit("a", b"1"),
        format!("SERVER_ERROR {}\r\nOK\r\nOK\r\n", too_few(5)).into_bytes(),
        format!("MEMLIMIT_ADJUST_FAILED {}\r\n{located}END\r\n", too_few(8 << 20)).into_bytes(),
        hit("a", b"1"),
    ];
    assert_same(&bench.exchange(&script.concat()), &expected.concat());
    let inspected = String::from_utf8(bench.exchange(b"stats inspect\r\nget a\r\n")).unwrap();
    let store_id = format!("STAT superblock:store_id {}\r\n", store.id());
    assert!(inspected.contains(&store_id) && inspected.ends_with("END\r\nVALUE a 0 1\r\n1\r\nEND\r\n"), "{inspected}");
    let settings = String::from_utf8(bench.exchange(b"stats settings\r\n")).unwrap();
    assert!(settings.contains("STAT maxbytes 134217728\r\n"), "{settings}");
    // More than the machine has.
    for (line, word) in
        [("resize memory 999999999999999", "SERVER_ERROR"), ("cache_memlimit 900000000", "MEMLIMIT_ADJUST_FAILED")]
    {
        let refusal = String::from_utf8(bench.exchange(format!("{line}\r\n").as_bytes())).unwrap();
        assert!(refusal.starts_with(word) && refusal.contains("is more than this machine has"), "{refusal}");
    }
    // One that waits, and one that left before its answer, keep no one.
    let mut waiting = bench.client();
    flash.stall_nth_write(1, 100_000);
    waiting.write_all(b"resize capacity 310000000\r\n").unwrap();
    drop(bench.client().write_all(b"resize memory 128000000\r\nstats inspect\r\n"));
    assert_same(&bench.exchange(b"get a\r\n"), &hit("a", b"1"));
    let mut answer = [0; 4];
    waiting.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"OK\r\n");
    bench.stop();
}
