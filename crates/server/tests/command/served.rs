//! A command does the same whether or not a server has the store open: each is run over a closed store and over a served one. And what a
//! server's socket does about what is not a command, and with commands that go away.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tapetum_service::socket::frame::{FrameHead, FrameKind, framed_data};

use crate::outside::{Folder, Served, failed, stop, succeeded, tapetum};

struct Scratch(Folder);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(Folder::new(&format!("service-{name}")))
    }

    fn data(&self) -> std::path::PathBuf {
        self.0.join("data")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = tapetum(words);
        command.arg("--data").arg(self.data());
        command
    }

    fn run(&self, words: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(words);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that wants none may have ended.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    #[track_caller]
    fn succeeds(&self, words: &[&str]) -> String {
        succeeded(self.run(words, b""))
    }

    fn serve(&self, more: &[&str]) -> Served {
        self.serve_at(&self.0.join("socket"), more)
    }

    fn serve_at(&self, socket: &std::path::Path, more: &[&str]) -> Served {
        let socket = format!("unix:{}", socket.display());
        let words = ["serve", "--threads", "1", "--memory", "64MiB", "--capacity", "128MiB", "--memcached", &socket];
        Served::start(&mut self.command(&[&words[..], more].concat()))
    }

    fn socket(&self) -> std::path::PathBuf {
        self.data().join("tapetum.sock")
    }
}

/// Every command that a store answers, right and wrong, one after the other.
const COMMANDS: &[&[&str]] = &[
    &["keyspace", "create", "papers", "--index", "ordered"],
    &["keyspace", "create", "papers"],
    &["keyspace", "create", "disk", "--block-device", "1MiB"],
    &["keyspace", "format", "papers", "key: id u32be; value: year u16be, title string", "--check"],
    &["keyspace", "format", "papers", "key: id u99"],
    &["keyspace", "format", "papers"],
    &["keyspace", "format", "default"],
    &["load", "--keyspace", "papers", "--format", "tsv"],
    &["load"],
    &["load", "--skip-bad"],
    &["load", "--keyspace", "nowhere"],
    &["keyspace", "list"],
    &["keyspace", "list", "--json"],
    &["keyspace", "show", "papers"],
    &["keyspace", "show", "paper"],
    &["keyspace", "resize", "disk", "2MiB"],
    &["keyspace", "resize", "papers", "2MiB"],
    &["scan", "papers"],
    &["scan", "papers", "--from", "2", "--reverse", "--limit", "2"],
    &["scan", "papers", "--count"],
    &["scan", "papers", "--format", "jsonl", "--prefix", ""],
    &["scan", "papers", "--where", "year >= 1990", "--order-by", "id", "--limit", "10"],
    &["scan", "papers", "--where", "year >= 1990", "--format", "csv", "--run", "host"],
    &[
        "scan",
        "papers",
        "--group-by",
        "year",
        "--select",
        "year, count(*) as n",
        "--having",
        "n > 1",
        "--format",
        "jsonl",
    ],
    &["scan", "papers", "--where", "yaer > 1"],
    &["scan", "papers", "--select", "id", "--format", "arrow"],
    &["scan", "papers", "--select", "id", "--units", "1", "--run", "host"],
    &["scan", "default"],
    &["scan", "nowhere"],
    &["graph", "bc", "--edges", "id, year from papers", "--format", "csv"],
    &["graph", "bc", "--edges", "from default"],
    &["put", "7", "no paper", "--keyspace", "papers"],
    &["put", "color", "blue"],
    &["put", "color", "-", "--keyspace", "disk"],
    &["get", "color"],
    &["get", "1", "--keyspace", "papers", "--select", "title, year"],
    &["get", "1", "--keyspace", "papers", "--select", "title", "--run", "host", "--format", "jsonl"],
    &["get", "99", "--keyspace", "papers", "--select", "title"],
    &["get", "nothing"],
    &["list", "--prefix", "c", "--long"],
    &["list", "--keyspace", "papers"],
    &["dump", "--keyspace", "papers", "--format", "tsv"],
    &["dump", "--prefix", "c"],
    &["pipeline", "run", "fetch | sha256", "--key", "color"],
    &["pipeline", "run", "gzip", "--key", "color"],
    &["pipeline", "run", "sha256", "--key", "absent"],
    &["delete", "color"],
    &["delete", "color"],
    &["inspect", "color"],
    &["stats"],
    &["check"],
    &["resize", "--capacity", "160MiB"],
    &["resize", "--capacity", "1MiB"],
    &["keyspace", "rename", "papers", "articles"],
    &["keyspace", "drop", "articles"],
    &["keyspace", "drop", "articles", "--yes"],
    &["keyspace", "drop", "default", "--yes"],
    &["scan", "articles"],
];

/// What `load` reads: papers with the format's key and value as escapes, or plain items.
fn input(words: &[&str]) -> &'static [u8] {
    match words {
        ["load", "--keyspace", "papers", ..] => {
            b"\\x00\\x00\\x00\\x01\t\\x07\\xd0one\n\\x00\\x00\\x00\\x02\t\\x07\\xd0two\n\\x00\\x00\\x00\\x03\t\\x07\\x80three\n"
        }
        ["load", "--skip-bad"] => b"no tab\nclock\ttick\n",
        ["load", ..] => b"cloud\twhite\ncat\tgrey\n",
        _ => b"",
    }
}

/// Tells what each command printed and how it ended, without what is of one run alone.
fn transcript(scratch: &Scratch) -> Vec<String> {
    let place = scratch.data().display().to_string();
    let run = |words: &&[&str]| {
        let Output { status, stdout, stderr } = scratch.run(words, input(words));
        let (printed, told) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        // Where a key lives depends on when buffers are flushed.
        let mut lines: Vec<String> = printed.replace(&place, "DATA").lines().map(str::to_owned).collect();
        match words[0] {
            // Figures depend on that too.
            "inspect" | "stats" | "check" => lines.clear(),
            // The items of a hashed keyspace have no order.
            "list" | "dump" | "scan" if !words.contains(&"papers") => lines.sort(),
            _ => {}
        }
        // `check` of a served store also tells what it did not look at.
        let told = if words[0] == "check" { Default::default() } else { told };
        let printed = lines.join("\n");
        format!("{}\n{status}\n{printed}\n{}", words.join(" "), told.replace(&place, "DATA"))
    };
    COMMANDS.iter().map(run).collect()
}

#[test]
fn each_command_does_the_same_closed_and_served() {
    let (closed, served) = (Scratch::new("closed"), Scratch::new("served"));
    for scratch in [&closed, &served] {
        scratch.succeeds(&["put", "first", "1", "--capacity", "128MiB", "--memory", "64MiB"]);
    }
    let server = served.serve(&[]);
    for (of_closed, of_served) in transcript(&closed).iter().zip(&transcript(&served)) {
        assert_eq!(of_closed, of_served);
    }
    server.stop();
    // The store has what was done through the server.
    let dumped = [&closed, &served].map(|scratch| {
        let mut lines: Vec<String> = scratch.succeeds(&["dump"]).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    });
    assert_eq!(dumped[0], dumped[1]);
}

/// Requests that change no keyspaces and no sizes are answered alike through the socket and through the Flight door.
#[test]
fn a_command_asks_a_server_elsewhere_as_the_one_of_its_store() {
    let scratch = Scratch::new("elsewhere");
    scratch.succeeds(&["put", "first", "1", "--capacity", "128MiB", "--memory", "64MiB"]);
    let door = scratch.0.join("door");
    let server = scratch.serve(&["--flight", &format!("unix:{}", door.display())]);
    let address = format!("grpc+unix://{}", door.display());
    let is_admin = |words: &[&str]| {
        let changes = matches!(words[..2.min(words.len())], ["keyspace", verb] if !["list", "show"].contains(&verb));
        changes || words[0] == "resize"
    };
    let is_about_format =
        |words: &[&str]| words == ["keyspace", "format", "papers"] || words == ["keyspace", "format", "default"];
    for words in COMMANDS.iter().filter(|words| words[0] != "delete") {
        let here = scratch.run(words, input(words));
        let mut there = tapetum(words);
        there.args(["--server", &address]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut there = there.spawn().unwrap();
        let _ = there.stdin.take().unwrap().write_all(input(words));
        let there = there.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&there.stderr);
        if is_admin(words) && !is_about_format(words) {
            assert!(!there.status.success(), "{words:?}");
            continue;
        }
        assert_eq!(here.status, there.status, "{words:?}: {told}");
        if !["inspect", "stats", "check", "list", "dump"].contains(&words[0]) {
            assert_eq!(String::from_utf8_lossy(&here.stdout), String::from_utf8_lossy(&there.stdout), "{words:?}");
        }
        let place = scratch.data().display().to_string();
        assert_eq!(String::from_utf8_lossy(&here.stderr).replace(&place, ""), told.replace(&place, ""), "{words:?}");
    }
    let nobody = failed(tapetum(&["keyspace", "list", "--server", "grpc://127.0.0.1:1"]).output().unwrap());
    assert!(nobody.contains("start it there with --flight"), "{nobody}");
    server.stop();
}

/// Lines that do not parse are left out of what is sent, and the others keep their numbers.
#[test]
fn a_line_that_the_store_refuses_is_named_by_its_number() {
    let scratch = Scratch::new("numbers");
    scratch.succeeds(&["put", "first", "1", "--capacity", "128MiB", "--memory", "64MiB"]);
    let lines = format!("no tab\nkey\tvalue\n{}\tlong\n", "k".repeat(70_000));
    let server = scratch.serve(&[]);
    let output = scratch.run(&["load", "--skip-bad"], lines.as_bytes());
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && told.contains("line 1 is") && told.contains("line 3 is"), "{told}");
    assert!(!told.contains("line 2"), "{told}");
    // A value that no frame holds is refused with advice.
    let refused = failed(scratch.run(&["put", "large", "-"], &vec![b'x'; 20 << 20]));
    assert!(refused.contains("split it"), "{refused}");
    server.stop();
}

#[test]
fn what_is_made_while_it_serves_is_there_after_a_kill() {
    let scratch = Scratch::new("killed");
    let mut server = scratch.serve(&["--sync", "always"]).child;
    scratch.succeeds(&["keyspace", "create", "kept", "--index", "ordered"]);
    scratch.succeeds(&["put", "key", "value", "--keyspace", "kept"]);
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(scratch.socket().exists(), "nobody took it away");
    assert_eq!(scratch.succeeds(&["get", "key", "--keyspace", "kept"]), "value");
    // The next server takes the place of the socket.
    let mut server = scratch.serve(&[]).child;
    assert_eq!(scratch.succeeds(&["scan", "kept"]), "key\tvalue\n");
    stop(&mut server);
    assert!(!scratch.socket().exists());
}

#[test]
fn the_socket_is_its_owners_alone_and_what_lies_there_stays() {
    let scratch = Scratch::new("owner");
    let server = scratch.serve(&[]);
    let mode = std::fs::metadata(scratch.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    server.stop();
    std::fs::write(scratch.socket(), "a note").unwrap();
    let server = scratch.serve(&[]);
    assert!(server.log.contains("move it away"), "{}", server.log);
    let error = failed(scratch.run(&["get", "key"], b""));
    assert!(error.contains("nobody answers commands at"), "{error}");
    server.stop();
    assert_eq!(std::fs::read(scratch.socket()).unwrap(), b"a note");
}

#[test]
fn a_path_that_is_too_long_for_a_socket_is_served_too() {
    let (scratch, short) = (Scratch::new(&"long".repeat(30)), Folder::new("service-short"));
    let mut server = scratch.serve_at(&short.join("socket"), &[]).child;
    scratch.succeeds(&["put", "key", "value"]);
    assert_eq!(scratch.succeeds(&["get", "key"]), "value");
    stop(&mut server);
}

/// Sends bytes that are no commands; what the server answers.
fn answer_to(scratch: &Scratch, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(scratch.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    // It may close the socket before all is read.
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn what_is_no_command_is_told_so_and_others_are_served() {
    let scratch = Scratch::new("garbage");
    let server = scratch.serve(&[]);
    let answer = String::from_utf8(answer_to(&scratch, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("commands of tapetum"), "{answer}");
    let greeting = tapetum_service::socket::frame::greeting();
    let head = greeting.len();
    let told = |frame: &[u8]| {
        let answer = answer_to(&scratch, &[&greeting[..], frame].concat());
        assert_eq!(answer[..head], greeting);
        String::from_utf8_lossy(&answer[head..]).into_owned()
    };
    assert!(told(&[3, 0, 0, 0, 1, 0xff, 0xff, 0xff]).contains("makes no sense"));
    assert!(told(&[0, 0, 0, 0, 1]).contains("makes no sense"), "a request without a body");
    assert!(told(&[0, 0, 0, 0, 77]).contains("kind 77"));
    assert!(told(&[0xff, 0xff, 0xff, 0xff, 1]).contains("longer"));
    assert!(told(&[0, 0, 0, 0, 4]).contains("clients send requests alone"));
    let mut random = tapetum_drive::SplitMix64::new(7);
    for _ in 0..200 {
        let bytes: Vec<u8> = (0..random.next_u64() % 200).map(|_| random.next_u64() as u8).collect();
        answer_to(&scratch, &bytes);
        answer_to(&scratch, &[&greeting[..], &[bytes.len() as u8, 0, 0, 0, 1], &bytes].concat());
    }
    assert_eq!(scratch.succeeds(&["keyspace", "list"]), "default\thashed\t0\n");
    server.stop();
}

#[test]
fn another_version_is_named_and_nothing_is_guessed() {
    let scratch = Scratch::new("version");
    let server = scratch.serve(&[]);
    let mut greeting = tapetum_service::socket::frame::greeting();
    greeting[8] = 99;
    // It says which it is, and ends.
    let answer = answer_to(&scratch, &[&greeting[..], &[0, 0, 0, 0, 1]].concat());
    assert_eq!(answer, tapetum_service::socket::frame::greeting());
    server.stop();
    // A server of the future, for a command of today.
    let listener = UnixListener::bind(scratch.socket()).unwrap();
    let future = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut came = [0; 12];
        stream.read_exact(&mut came).unwrap();
        stream.write_all(b"TAPETUM\n\x63\x00\x05\x009.9.9").unwrap();
    });
    let error = failed(scratch.run(&["get", "key"], b""));
    assert!(error.contains("tapetum 9.9.9 (protocol 99)") && error.contains("restart it with this one"), "{error}");
    future.join().unwrap();
}

#[test]
fn data_is_generated_into_a_closed_store_and_a_served_one() {
    let [closed, served] = ["generated-closed", "generated-served"].map(Scratch::new);
    let generate = |scratch: &Scratch| {
        let words = ["generate", "papers", "--scale", "0.0005", "--into"];
        let told = succeeded(tapetum(&words).arg(scratch.data()).output().unwrap());
        let counted = scratch.succeeds(&["scan", "papers", "--select", "count(*), max(year)", "--format", "csv"]);
        (told.replace(&scratch.data().display().to_string(), "DATA"), counted)
    };
    closed.succeeds(&["put", "first", "1", "--capacity", "128MiB", "--memory", "64MiB"]);
    let server = served.serve(&[]);
    let of_served = generate(&served);
    server.stop();
    assert_eq!(generate(&closed), of_served);
}

#[test]
fn a_store_is_warmed_from_a_server_whether_it_is_closed_or_served() {
    let [from, closed, served] = ["warm-from", "warm-closed", "warm-served"].map(Scratch::new);
    let source = from.serve(&[]);
    from.run(&["load"], b"cloud\twhite\ncat\tgrey\n");
    let address = format!("unix:{}", from.0.join("socket").display());
    let warm = |scratch: &Scratch| {
        let told = scratch.run(&["warm", "--from", &address], b"");
        let mut dumped: Vec<String> = scratch.succeeds(&["dump"]).lines().map(str::to_owned).collect();
        dumped.sort();
        (String::from_utf8(told.stderr).unwrap(), succeeded(Output { stderr: Vec::new(), ..told }), dumped)
    };
    for scratch in [&closed, &served] {
        scratch.succeeds(&["put", "first", "1", "--capacity", "128MiB", "--memory", "64MiB"]);
    }
    let server = served.serve(&[]);
    let of_served = warm(&served);
    server.stop();
    let of_closed = warm(&closed);
    source.stop();
    assert_eq!(of_closed, of_served);
    assert_eq!(of_closed.2.len(), 3, "{of_closed:?}");
}

#[test]
fn a_thousand_requests_of_one_client_are_answered_in_their_order() {
    const REQUESTS: usize = 1000;
    let scratch = Scratch::new("thousand");
    let server = scratch.serve(&[]);
    let greeting = tapetum_service::socket::frame::greeting();
    let mut stream = UnixStream::connect(scratch.socket()).unwrap();
    // The requests ask for the format of a keyspace that is there, and of one that is not.
    let request = |name: &str| {
        let request = tapetum_service::request::Request::Format { keyspace: name.into(), freeze: None };
        framed_data(FrameKind::Request, &request).unwrap()
    };
    let pair = [request("default"), request("nowhere")].concat();
    let mut asking = stream.try_clone().unwrap();
    let asked = std::thread::spawn(move || asking.write_all(&[greeting, pair.repeat(REQUESTS / 2)].concat()));
    stream.read_exact(&mut vec![0; tapetum_service::socket::frame::greeting().len()]).unwrap();
    let mut next = || {
        let mut head = [0; 5];
        stream.read_exact(&mut head).unwrap();
        let FrameHead { kind, body_bytes } = FrameHead::parse(head, 1 << 20).unwrap();
        stream.read_exact(&mut vec![0; body_bytes]).unwrap();
        kind
    };
    for _ in 0..REQUESTS / 2 {
        assert_eq!([next(), next(), next()], [FrameKind::Reply, FrameKind::Done, FrameKind::Failed]);
    }
    asked.join().unwrap().unwrap();
    server.stop();
}

#[test]
fn more_clients_than_are_let_in_are_told_to_come_again() {
    let scratch = Scratch::new("many");
    let server = scratch.serve(&[]);
    let greeting = tapetum_service::socket::frame::greeting();
    let mut clients: Vec<UnixStream> = Vec::new();
    for _ in 0..tapetum_service::socket::listener::CLIENTS_MAX {
        let mut stream = UnixStream::connect(scratch.socket()).unwrap();
        stream.write_all(&greeting).unwrap();
        stream.read_exact(&mut vec![0; greeting.len()]).unwrap();
        clients.push(stream);
    }
    let error = failed(scratch.run(&["get", "key"], b""));
    assert!(error.contains("try again when one has ended"), "{error}");
    clients.clear();
    while !scratch.run(&["keyspace", "list"], b"").status.success() {}
    server.stop();
}

/// The value of a figure in what `tapetum stats` prints.
fn figure(stats: &str, name: &str) -> u64 {
    let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {stats}")).parse().unwrap()
}

#[test]
fn the_drives_threads_are_shared_by_applications_and_each_is_counted() {
    let scratch = Scratch::new("units");
    much(&scratch);
    let units = ["--compute-units", "scan=1,zstd=1", "--weight", "train=4,report=1"];
    let words = ["serve", "--memory", "64MiB", "--memcached", "none", "--metrics", "127.0.0.1:0"];
    let server = Served::start_when(&mut scratch.command(&[&words[..], &units].concat()), "Prometheus at");
    let metrics = server.log.split("http://").nth(1).and_then(|rest| rest.split("/metrics").next()).unwrap().to_owned();
    let query = ["scan", "much", "--fields", "key: k string; value: v string", "--select", "count(*)", "--explain"];
    for (application, times) in [("train", 3), ("report", 1)] {
        for _ in 0..times {
            let output = scratch.run(&[&query[..], &["--application", application]].concat(), b"");
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && told.contains("by 1 units of the drive"), "{told}");
        }
    }
    let stats = scratch.succeeds(&["stats"]);
    let pipelines = |application: &str| figure(&stats, &format!("application_pipelines:{application}"));
    assert!(pipelines("train") >= 3 * pipelines("report") && pipelines("report") > 0, "{stats}");
    assert_eq!(figure(&stats, "application_weight:train"), 4);
    assert!(figure(&stats, "stage_tasks:scan") > 0);
    let mut page = String::new();
    let mut scraper = TcpStream::connect(metrics).unwrap();
    scraper.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    scraper.read_to_string(&mut page).unwrap();
    assert!(page.contains("tapetum_application_weight{application=\"train\"} 4"), "{page}");
    assert!(page.contains("tapetum_drive_stage_runs_total{stage=\"scan\"}"), "{page}");
    let unknown = failed(scratch.run(&[&query[..], &["--application", "trian"]].concat(), b""));
    assert!(unknown.contains("default, train, report"), "{unknown}");
    server.stop();
    let error = failed(scratch.run(&["serve", "--memcached", "none", "--compute-units", "gzip=1"], b""));
    assert!(error.contains("no program \"gzip\""), "{error}");
}

#[test]
fn a_server_may_be_there_for_commands_alone() {
    let scratch = Scratch::new("alone");
    let mut command = scratch.command(&["serve", "--memcached", "none", "--memory", "64MiB", "--capacity", "128MiB"]);
    let mut server = Served::start_when(&mut command, "to commands at").child;
    scratch.succeeds(&["put", "key", "value"]);
    assert_eq!(scratch.succeeds(&["get", "key"]), "value");
    stop(&mut server);
}

/// A store with so many items that they do not fit a socket's buffers.
fn much(scratch: &Scratch) {
    scratch.succeeds(&[
        "keyspace",
        "create",
        "much",
        "--index",
        "ordered",
        "--capacity",
        "128MiB",
        "--memory",
        "64MiB",
    ]);
    let lines: String = (0..20_000).map(|number| format!("{number:08}\t{}\n", "x".repeat(500))).collect();
    succeeded(scratch.run(&["load", "--keyspace", "much"], lines.as_bytes()));
}

/// A command that has begun to print, and is read no further.
fn begun(scratch: &Scratch, words: &[&str]) -> std::process::Child {
    let mut child = scratch.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut some = [0; 100];
    child.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
    child
}

#[test]
fn a_command_that_reads_nothing_keeps_no_server_from_stopping() {
    let scratch = Scratch::new("stopped");
    much(&scratch);
    let server = scratch.serve(&[]);
    let waiting = begun(&scratch, &["scan", "much"]);
    let killed = Command::new("kill").arg("-STOP").arg(waiting.id().to_string()).status().unwrap();
    assert!(killed.success());
    scratch.succeeds(&["put", "key", "value"]);
    server.stop();
    assert!(Command::new("kill").arg("-CONT").arg(waiting.id().to_string()).status().unwrap().success());
    let output = waiting.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("the server"), "{told}");
}

#[test]
fn a_command_whose_server_is_killed_says_so() {
    let scratch = Scratch::new("gone");
    much(&scratch);
    for words in [
        &["scan", "much"][..],
        &["dump", "--keyspace", "much"],
        &["scan", "much", "--fields", "key: k string; value: v string", "--select", "v"],
    ] {
        let mut server = scratch.serve(&[]).child;
        let waiting = begun(&scratch, words);
        server.kill().unwrap();
        server.wait().unwrap();
        let output = waiting.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("ended before it had answered") && told.contains("when it serves again"), "{told}");
    }
}

#[test]
fn a_keyspace_that_is_dropped_under_a_scan_ends_it_and_not_the_server() {
    let scratch = Scratch::new("dropped");
    much(&scratch);
    let server = scratch.serve(&[]);
    let waiting = begun(&scratch, &["scan", "much"]);
    scratch.succeeds(&["keyspace", "drop", "much", "--yes"]);
    let output = waiting.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("was dropped"), "{told}");
    assert_eq!(scratch.succeeds(&["keyspace", "list"]), "default\thashed\t0\n");
    server.stop();
}

#[test]
fn commands_take_their_memory_from_the_servers_and_none_keeps_it_by_doing_nothing() {
    let scratch = Scratch::new("memory");
    let server = scratch.serve(&[]);
    let address = format!("unix:{}", scratch.0.join("socket").display());
    let held_bytes = || {
        let output = tapetum(&["stats", "--memcached", &address]).output().unwrap();
        figure(&succeeded(output), "requests_held_bytes")
    };
    // Announces more than the server has for requests, and sends none of it.
    let hang = || {
        let mut stream = UnixStream::connect(scratch.socket()).unwrap();
        let body_bytes: u32 = 16 << 20;
        stream.write_all(&tapetum_service::socket::frame::greeting()).unwrap();
        stream.write_all(&[&body_bytes.to_le_bytes()[..], &[1]].concat()).unwrap();
        while held_bytes() < u64::from(body_bytes) {}
        stream
    };
    drop(hang());
    while held_bytes() > 0 {}
    // Small ones go on; a large one goes on when the other was let go.
    let hanging = hang();
    scratch.succeeds(&["put", "small", "value"]);
    let value = "v".repeat(1 << 20);
    succeeded(scratch.run(&["put", "large", "-"], value.as_bytes()));
    assert_eq!(scratch.succeeds(&["get", "large"]).len(), value.len());
    let mut told = Vec::new();
    (&hanging).read_to_end(&mut told).unwrap();
    assert_eq!(told, tapetum_service::socket::frame::greeting(), "it is let go");
    while held_bytes() > 0 {}
    server.stop();
}

#[test]
fn a_served_store_is_checked_beside_its_clients_and_says_what_was_not() {
    let scratch = Scratch::new("check");
    much(&scratch);
    let server = scratch.serve(&[]);
    let output = scratch.run(&["check"], b"");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let printed = succeeded(output);
    assert!(printed.contains("\nno damage found\n") && figure(&printed, "records") >= 20_000, "{printed}");
    assert!(told.contains("of a stopped one also checks the index"), "{told}");
    server.stop();
}
