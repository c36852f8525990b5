//! The binary over a restart: what was hot is in DRAM again, after a stop and after kill -9, and the list may be anything.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;

use crate::outside::{Folder, Served, stop, tapetum};
use tapetum_server::store::hot_keys::check_place;

/// By then a server has done what it is waited for.
const UPTIME_MAX_S: u64 = 120;
/// Keys that are read, among others; the write buffers hold less than all.
const HOT: usize = 300;
const KEYS: usize = 3000;
const VALUE_BYTES: usize = 4000;

struct Bench {
    folder: Folder,
    server: Option<Child>,
}

impl Bench {
    fn new(name: &str) -> Bench {
        Bench { folder: Folder::new(&format!("hot-{name}")), server: None }
    }

    fn list(&self) -> PathBuf {
        self.folder.join("data/hot-keys")
    }

    /// Starts the server; what it logged until it served.
    fn start(&mut self, every: &str) -> String {
        let socket = format!("unix:{}", self.folder.join("socket").display());
        let mut command = tapetum(&["serve"]);
        command.args(["--threads", "1", "--capacity", "128MiB", "--memory", "48MiB", "--tier", "16MiB"]);
        command.args(["--memcached", &socket, "--hot-keys-every", every, "--data"]).arg(self.folder.join("data"));
        let Served { child, log, .. } = Served::start(&mut command);
        self.server = Some(child);
        log
    }

    fn stop(&mut self) {
        stop(&mut self.server.take().unwrap());
    }

    fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    fn client(&self) -> BufReader<UnixStream> {
        BufReader::new(UnixStream::connect(self.folder.join("socket")).unwrap())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

type Client = BufReader<UnixStream>;

fn ask(client: &mut Client, request: &str) -> String {
    client.get_mut().write_all(request.as_bytes()).unwrap();
    line(client)
}

fn line(client: &mut Client) -> String {
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    line
}

fn stats(client: &mut Client) -> HashMap<String, u64> {
    let mut line_now = ask(client, "stats\r\n");
    let mut figures = HashMap::new();
    while line_now != "END\r\n" {
        let mut words = line_now.split_whitespace().skip(1);
        if let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse)) {
            figures.insert(name.to_owned(), value);
        }
        line_now = line(client);
    }
    figures
}

fn stats_when(client: &mut Client, is_so: impl Fn(&HashMap<String, u64>) -> bool) -> HashMap<String, u64> {
    loop {
        let figures = stats(client);
        if is_so(&figures) {
            return figures;
        }
        assert!(figures["uptime"] < UPTIME_MAX_S, "it does not come to that: {figures:?}");
    }
}

fn value(number: usize, version: u64) -> String {
    let word = number as u64 ^ version << 40;
    let noise =
        (0..VALUE_BYTES as u64 / 8).map(|n| format!("{:08x}", (word + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32));
    noise.collect()
}

fn set(client: &mut Client, numbers: std::ops::Range<usize>, version: u64) {
    let requests =
        numbers.clone().map(|number| format!("set key:{number} 0 0 {VALUE_BYTES}\r\n{}\r\n", value(number, version)));
    client.get_mut().write_all(requests.collect::<String>().as_bytes()).unwrap();
    numbers.for_each(|_| assert_eq!(line(client), "STORED\r\n"));
}

fn get(client: &mut Client, number: usize) -> Option<String> {
    if ask(client, &format!("get key:{number}\r\n")) == "END\r\n" {
        return None;
    }
    let mut value = vec![0; VALUE_BYTES + 2];
    client.read_exact(&mut value).unwrap();
    assert_eq!(line(client), "END\r\n");
    value.truncate(VALUE_BYTES);
    Some(String::from_utf8(value).unwrap())
}

/// Stores more than the write buffers hold, and reads some until they are hot. Of those that are in a buffer, none is.
fn load(client: &mut Client) {
    for first in (0..KEYS).step_by(50) {
        set(client, first..first + 50, 1);
    }
    for _ in 0..3 {
        (0..HOT).for_each(|number| assert_eq!(get(client, number), Some(value(number, 1))));
    }
    assert!(stats(client)["get_from_tier"] >= 2 * HOT as u64);
}

/// Reads what was hot; how many of these DRAM answered, and how many flash did.
fn read_hot(client: &mut Client, expected: impl Fn(usize) -> Option<String>) -> (u64, u64) {
    let before = stats(client);
    (0..HOT).for_each(|number| assert_eq!(get(client, number), expected(number), "key {number}"));
    let after = stats(client);
    let grown = |name: &str| after[name] - before[name];
    (grown("get_from_tier"), grown("get_from_flash"))
}

#[test]
fn what_was_hot_is_answered_by_dram_after_a_stop_and_after_a_kill() {
    let mut bench = Bench::new("restart");
    bench.start("1");
    let mut client = bench.client();
    let figures = stats_when(&mut client, |figures| figures["warming"] == 0);
    assert_eq!((figures["hot_keys_listed"], figures["hot_keys_saves"]), (0, 0));
    load(&mut client);
    bench.stop();

    bench.start("1");
    let mut client = bench.client();
    let figures = stats_when(&mut client, |figures| figures["warming"] == 0);
    assert_eq!(figures["hot_keys_listed"], HOT as u64);
    assert_eq!((figures["hot_keys_warmed"], figures["hot_keys_gone"]), (HOT as u64, 0));
    assert_eq!(read_hot(&mut client, |number| Some(value(number, 1))), (HOT as u64, 0));
    // One more that is hot, and a list with it.
    (0..3).for_each(|_| drop(get(&mut client, HOT)));
    let saved = HOT as u64 + 1;
    let figures = stats_when(&mut client, |figures| figures["hot_keys_saved"] == saved);
    assert!(figures["hot_keys_saves"] > 0);
    // After the list: one key is written over, one deleted.
    set(&mut client, 7..8, 2);
    assert_eq!(ask(&mut client, "delete key:8\r\n"), "DELETED\r\n");
    bench.kill();

    bench.start("300");
    let mut client = bench.client();
    let figures = stats_when(&mut client, |figures| figures["warming"] == 0);
    // The deleted one is gone, and missing in a list that was saved once more. The other is in a write buffer.
    assert_eq!(figures["hot_keys_warmed"], saved - 1);
    assert_eq!(figures["hot_keys_listed"], figures["hot_keys_warmed"] + figures["hot_keys_gone"]);
    let as_now = |number: usize| match number {
        7 => Some(value(7, 2)),
        8 => None,
        _ => Some(value(number, 1)),
    };
    assert_eq!(read_hot(&mut client, as_now), (HOT as u64 - 2, 0));
    bench.stop();
}

#[test]
fn a_list_that_is_damaged_or_of_another_store_is_passed_over_and_replaced() {
    let mut bench = Bench::new("damaged");
    bench.start("300");
    load(&mut bench.client());
    bench.stop();
    let list = fs::read(bench.list()).unwrap();
    let cut = list[..list.len() / 2].to_vec();
    let mut foreign = list.clone();
    foreign[9] ^= 1;
    let mut damaged = list.clone();
    damaged[100] ^= 1;
    for bytes in [cut, foreign, damaged, b"nonsense".to_vec(), Vec::new()] {
        fs::write(bench.list(), &bytes).unwrap();
        bench.start("300");
        let mut client = bench.client();
        let figures = stats_when(&mut client, |figures| figures["warming"] == 0);
        assert_eq!(figures["hot_keys_warmed"], 0);
        // Nothing was asked for: what is there stays.
        bench.stop();
        assert_eq!(fs::read(bench.list()).unwrap(), bytes);
    }
    bench.start("300");
    let mut client = bench.client();
    stats_when(&mut client, |figures| figures["warming"] == 0);
    for _ in 0..3 {
        read_hot(&mut client, |number| Some(value(number, 1)));
    }
    bench.stop();
    assert_eq!(fs::read(bench.list()).unwrap().len(), list.len());
}

#[test]
fn a_place_of_something_else_is_refused_and_stays_as_it_is() {
    let bench = Bench::new("place");
    let notes = bench.folder.join("notes");
    fs::write(&notes, "of mine").unwrap();
    fs::create_dir(bench.folder.join("data")).unwrap();
    for (place, why) in [
        (notes.clone(), "something else"),
        (bench.folder.to_path_buf(), "no file"),
        (bench.folder.join("a/b"), "no folder"),
        // The store that is made there first.
        (bench.folder.join("data/drive"), "something else"),
    ] {
        let words =
            ["serve", "--capacity", "128MiB", "--memory", "48MiB", "--tier", "16MiB", "--memcached", "127.0.0.1:0"];
        let mut command = tapetum(&words);
        command.arg("--hot-keys").arg(&place).arg("--data").arg(bench.folder.join("data"));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why) && said.contains("--hot-keys"), "{said}");
    }
    assert_eq!(fs::read_to_string(&notes).unwrap(), "of mine");
}

#[test]
fn what_a_kill_left_of_a_list_is_in_nobodys_way() {
    let bench = Bench::new("cut");
    let unfinished = bench.folder.join("list.unfinished");
    for (left, is_ours) in [(vec![0; 5000], true), (vec![0; 3], true), (b"of mine".to_vec(), false)] {
        fs::write(&unfinished, &left).unwrap();
        assert_eq!(check_place(&bench.folder.join("list")).is_ok(), is_ours);
    }
}

#[test]
fn no_list_is_kept_where_none_is_wanted() {
    let mut bench = Bench::new("off");
    bench.start("0");
    load(&mut bench.client());
    bench.stop();
    assert!(!bench.list().exists());
}
