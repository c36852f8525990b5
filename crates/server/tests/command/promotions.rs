//! Promotions from outside: a standby takes the place of its server when that was stopped, hangs or was killed.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::depots::{Client, Scratch, Writer, counted, counted_key, number, wait_until};
use crate::outside::{stop, succeeded};
use crate::standby::{Server, client, send_signal, serve_primary, serve_standby};

/// Promotes the standby; what that printed, and what it told.
#[track_caller]
pub fn promotes(scratch: &Scratch, more: &[&str]) -> (String, String) {
    let output = scratch.on("standby", &[&["promote", "depot"], more].concat()).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}");
    (String::from_utf8(output.stdout).unwrap(), told)
}

/// The number of the backup that a generation began with.
#[track_caller]
fn began(printed: &str, generation: u64) -> u64 {
    let number = printed.strip_prefix(&format!("generation {generation} began with backup "));
    number.unwrap_or_else(|| panic!("{printed}")).trim().parse().unwrap()
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// A client that sends sets in batches, and counts how they are answered.
struct Flood {
    stored: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Flood {
    fn start(mut client: Client) -> Flood {
        let counts = [Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default()];
        let ([stored, refused], is_over) = (counts.clone(), Arc::<AtomicBool>::default());
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut item = 0;
            while !over.load(Ordering::Relaxed) {
                let set = |item: u64| format!("set flood{item:07} 0 0 5\r\nvalue\r\n");
                let batch: String = (item..item + 50).map(set).collect();
                client.stream.write_all(batch.as_bytes()).unwrap();
                for _ in 0..50 {
                    match client.line() {
                        answer if answer == "STORED" => stored.fetch_add(1, Ordering::SeqCst),
                        answer if answer.starts_with("SERVER_ERROR ") => refused.fetch_add(1, Ordering::SeqCst),
                        answer => panic!("{answer}"),
                    };
                }
                item += 50;
            }
        });
        let [stored, refused] = counts;
        Flood { stored, refused, is_over, thread }
    }

    fn stored(&self) -> u64 {
        self.stored.load(Ordering::SeqCst)
    }

    fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }

    fn stop(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

#[test]
fn a_server_that_hung_acknowledges_nothing_after_its_standby_was_promoted() {
    let scratch = Scratch::new("hung");
    let mut primary = serve_primary(&scratch, &[]);
    let mut standby = serve_standby(&scratch, &[]);
    assert_eq!(client(&scratch, "data").sets("before", "value"), "STORED");
    let mut reading = client(&scratch, "standby");
    wait_until("the item", || reading.gets("before").is_some());
    let flood = Flood::start(client(&scratch, "data"));
    wait_until("sets", || flood.stored() > 500);
    primary.signal("-STOP");
    let (printed, told) = promotes(&scratch, &[]);
    let last = began(&printed, 2);
    assert!(told.starts_with("writes that the server before acknowledged in its last "), "{told}");
    let stored = flood.stored();
    assert_eq!(flood.refused(), 0);
    // It takes writes while the other hangs.
    assert_eq!(reading.sets("after", "promotion"), "STORED");
    assert_eq!(reading.gets("before").as_deref(), Some("value"));
    primary.signal("-CONT");
    wait_until("refusals", || flood.refused() > 200);
    assert_eq!(flood.stored(), stored, "sets were acknowledged after the promotion");
    flood.stop();
    let mut late = client(&scratch, "data");
    let answer = late.sets("late", "value");
    assert!(answer.contains("has lost its lease of the backups") && answer.contains("writes are refused"), "{answer}");
    assert_eq!(late.gets("before").as_deref(), Some("value"), "reads go on");
    let told = scratch.fails_on("data", &["put", "late", "value"]);
    assert!(told.contains("has lost its lease of the backups"), "{told}");
    assert_eq!(reading.gets("late"), None);

    // One that began after these sets.
    let of_new = || scratch.listed("depot").iter().filter(|backup| number(backup, "generation") == 2).count();
    let made = of_new();
    wait_until("backups of the new generation", || of_new() > made + 1);
    let list = scratch.listed("depot");
    let of_old = list.iter().filter(|backup| number(backup, "generation") == 1);
    assert!(of_old.clone().all(|backup| number(backup, "number") <= last || backup["state"] == "not believed"));
    // One that the old server would have made.
    let old = scratch.objects("depot/backups").into_iter().next().unwrap();
    let digest = old.file_name().unwrap().to_str().unwrap().rsplit_once('-').unwrap().1.to_owned();
    fs::copy(&old, scratch.join(format!("depot/backups/00000001-000000000999-{digest}"))).unwrap();
    let list = scratch.listed("depot");
    let late = list.iter().find(|backup| number(backup, "number") == 999).unwrap();
    assert_eq!(late["state"], "not believed");
    let told = scratch.fails(&["restore", "depot", "--into", "new", "--number", "999"]);
    assert!(told.contains("depot has no backup 999") && !scratch.is_there("new"), "{told}");
    let told = scratch.succeeds(&["restore", "depot", "--into", "new"]);
    assert!(!told.contains(" 999"), "{told}");
    assert_eq!(scratch.succeeds_on("new", &["get", "after"]), "promotion");
    assert!(scratch.succeeds(&["verify", "depot"]).contains(" whole: "));

    let log = primary.stop();
    assert!(log.contains("a standby serves in the place of this server; writes are refused"), "{log}");
    let again = ["serve", "--memcached", "none", "--backup-to", "depot", "--lease", "1"];
    let told = scratch.fails_on("data", &again);
    let held = format!("error: tapetum serve (process {} on ", standby.served().child.id());
    assert!(told.contains(&held) && told.contains(" makes backups at depot now"), "{told}");
    standby.signal("-CONT");
    standby.stop();
    let told = scratch.fails_on("data", &again);
    assert!(
        told.contains("error: the last backup at depot is not of this store's past: a standby was promoted"),
        "{told}"
    );
    let told = scratch.fails_on("data", &["backup", "create", "depot"]);
    assert!(told.contains("is not of this store's past"), "{told}");
    let told = scratch.fails_on("standby", &["serve", "--memcached", "none", "--follow", "depot"]);
    assert!(
        told.contains("error: standby/drive is no standby of depot: it holds another store, or was written to"),
        "{told}"
    );
    // The promoted store is the one whose backups count.
    let server = Server::start(&scratch, "standby", &["--backup-to", "depot"]);
    assert_eq!(client(&scratch, "standby").sets("again", "value"), "STORED");
    server.stop();
    let last = scratch.listed("depot").pop().unwrap();
    scratch.restores("depot", number(&last, "number"), "last");
    assert_eq!(scratch.succeeds_on("last", &["get", "again"]), "value");
}

#[test]
fn a_clean_stop_loses_nothing_whether_its_standby_is_served_or_not() {
    std::thread::scope(|scope| {
        [true, false].map(|is_served| scope.spawn(move || stop_cleanly(is_served))).map(|tried| tried.join().unwrap())
    });
}

fn stop_cleanly(is_served: bool) {
    let scratch = Scratch::new(&format!("clean-{is_served}"));
    let primary = serve_primary(&scratch, &[]);
    let standby = serve_standby(&scratch, &[]);
    let writer = Writer::start(&scratch.join("data.socket"));
    wait_until("sets", || writer.count() > 500);
    let served = match is_served {
        true => Some(standby),
        false => {
            standby.stop();
            None
        }
    };
    let acknowledged = writer.stop();
    primary.stop();
    let (printed, told) = promotes(&scratch, &[]);
    began(&printed, 2);
    assert_eq!(told, "nothing is lost: the server before made a last backup and stopped\n");
    assert_eq!(counted(&scratch.dumped("standby", "default")), acknowledged);
    let server = served.unwrap_or_else(|| Server::start(&scratch, "standby", &["--backup-to", "depot"]));
    assert_eq!(client(&scratch, "standby").sets("key", "value"), "STORED");
    assert!(scratch.fails_on("standby", &["promote", "depot"]).contains("serves writes already"));
    server.stop();
    assert_eq!(scratch.succeeds_on("standby", &["get", "key"]), "value");
    assert!(scratch.succeeds_on("standby", &["check"]).contains("no damage found"));
}

#[test]
fn of_a_server_that_was_killed_everything_before_its_last_backup_is_there() {
    std::thread::scope(|scope| {
        [true, false]
            .map(|is_served| scope.spawn(move || kill_and_promote(is_served)))
            .map(|tried| tried.join().unwrap())
    });
}

fn kill_and_promote(is_served: bool) {
    let scratch = Scratch::new(&format!("killed-{is_served}"));
    let primary = serve_primary(&scratch, &[]);
    let standby = serve_standby(&scratch, &[]);
    let mut writing = client(&scratch, "data");
    // When each set was acknowledged.
    let mut times = Vec::new();
    let backups = scratch.backups("depot");
    wait_until("two backups", || {
        for _ in 0..20 {
            let item = times.len() as u64;
            assert_eq!(writing.sets(&counted_key(item), &format!("value {item}")), "STORED");
            times.push(unix_ms());
        }
        scratch.backups("depot") > backups + 1
    });
    primary.kill();
    // One that is not served is killed as well.
    let served = is_served.then_some(standby);
    let (printed, told) = promotes(&scratch, &[]);
    let last = began(&printed, 2);
    assert!(told.contains("writes that the server before acknowledged in its last "), "{told}");
    assert!(told.ends_with("may be lost\n"), "{told}");
    let list = scratch.listed("depot");
    let backup = list.iter().find(|backup| number(backup, "number") == last).unwrap();
    // The clocks of the two differ by little.
    let moment_ms = number(backup, "moment_unix_ms") - 50;
    let must = times.iter().filter(|time_ms| **time_ms < moment_ms).count() as u64;
    let there = counted(&scratch.dumped("standby", "default"));
    assert!(must > 0 && (must..=times.len() as u64).contains(&there), "{there} of {}, {must} at least", times.len());
    scratch.succeeds_on("standby", &["put", "key", "value"]);
    if let Some(server) = served {
        server.stop();
    }
    assert!(scratch.succeeds_on("standby", &["check"]).contains("no damage found"));
}

#[test]
fn a_promotion_that_may_lose_anything_wants_to_be_forced() {
    let scratch = Scratch::new("force");
    scratch.succeeds_on("data", &["put", "key", "value"]);
    scratch.succeeds_on("other", &["put", "key", "other"]);
    scratch.succeeds_on("data", &["backup", "create", "depot"]);
    serve_standby(&scratch, &[]).stop();
    let told = scratch.fails_on("standby", &["promote", "depot"]);
    assert!(told.starts_with("error: no server holds a lease at depot, or it has made no backup under it"), "{told}");
    assert!(told.contains("say --force to lose that"), "{told}");
    let told = scratch.fails_on("other", &["promote", "depot"]);
    assert!(
        told.contains("error: other/drive is no standby of depot") && told.contains("nothing was changed"),
        "{told}"
    );
    let told = scratch.fails_on("other", &["promote", "depot", "--force"]);
    assert!(told.contains("error: depot has backups of another store"), "{told}");
    let told = scratch.fails_on("standby", &["promote", "empty"]);
    assert!(told.contains("error: cannot read empty: No such file"), "{told}");
    // None of that was a promotion.
    assert!(scratch.objects("depot/generations").is_empty());
    assert!(scratch.succeeds_on("data", &["backup", "create", "depot"]).starts_with("backup 2 "));

    let server = serve_standby(&scratch, &[]);
    assert!(scratch.fails_on("standby", &["promote", "depot"]).contains("say --force"));
    assert_eq!(client(&scratch, "standby").gets("key").as_deref(), Some("value"));
    server.stop();
    let (printed, told) = promotes(&scratch, &["--force"]);
    assert_eq!(began(&printed, 2), 2);
    assert!(told.contains("how much that is, nobody knows"), "{told}");
    assert_eq!(scratch.succeeds_on("standby", &["get", "key"]), "value");
    // Once more tells the same.
    assert_eq!(began(&promotes(&scratch, &[]).0, 2), 2);
    assert!(scratch.succeeds_on("standby", &["backup", "create", "depot"]).starts_with("backup 3 "));

    // The store before is let be the one that counts again.
    assert!(scratch.fails_on("data", &["backup", "create", "depot"]).contains("tapetum promote "));
    assert!(scratch.fails_on("data", &["promote", "depot"]).contains("is no standby of depot"));
    let told = scratch.succeeds_on("data", &["promote", "depot", "--force"]);
    assert_eq!(began(&told, 3), 3);
    assert!(scratch.succeeds_on("data", &["backup", "create", "depot"]).starts_with("backup 4 "));
    assert!(scratch.fails_on("standby", &["backup", "create", "depot"]).contains("is not of this store's past"));
    scratch.restores("depot", 4, "last");
}

/// Starts a standby, and stops its process while it restores its first store. Nobody can be asked then.
fn suspend_at_start(scratch: &Scratch) -> Child {
    for _ in 0..20 {
        let words = ["serve", "--memcached", "unix:standby.socket", "--threads", "1", "--every", "1", "--lease", "1"];
        let mut command = scratch.on("standby", &[&words[..], &["--follow", "depot"]].concat());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let lock = scratch.join("standby/drive.standby");
        while fs::read(&lock).unwrap_or_default().is_empty() && !scratch.is_there("standby/tapetum.sock") {
            assert!(child.try_wait().unwrap().is_none(), "the standby ended");
        }
        send_signal("-STOP", child.id());
        if !scratch.is_there("standby/tapetum.sock") {
            return child;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_dir_all(scratch.join("standby")).unwrap();
    }
    panic!("the standby was never stopped in time");
}

#[test]
fn a_standby_that_begins_is_promoted_by_its_server_and_nobody_works_beside_it() {
    let scratch = Scratch::new("begins");
    let primary = serve_primary(&scratch, &[]);
    assert_eq!(client(&scratch, "data").sets("key", "value"), "STORED");
    primary.stop();
    let mut standby = suspend_at_start(&scratch);
    let held = format!("error: standby/drive is held by tapetum serve (process {} on ", standby.id());
    let another = ["serve", "--memcached", "none", "--follow", "depot"];
    for words in [&["promote", "depot"][..], &["promote", "depot", "--force"], &another] {
        let told = scratch.fails_on("standby", words);
        assert!(told.contains(&held) && told.contains("nothing was changed"), "{told}");
    }
    assert!(scratch.objects("depot/generations").is_empty());
    // One that asks now is answered when the server is there.
    let mut promotion = scratch.on("standby", &["promote", "depot"]);
    let promotion = promotion.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    sleep(Duration::from_millis(300));
    send_signal("-CONT", standby.id());
    began(&succeeded(promotion.wait_with_output().unwrap()), 2);
    let mut writing = client(&scratch, "standby");
    assert_eq!(writing.gets("key").as_deref(), Some("value"));
    assert_eq!(writing.sets("key", "another"), "STORED");
    stop(&mut standby);
    assert!(!scratch.is_there("standby/drive.standby") && !scratch.is_there("standby/drive.next"));
    assert_eq!(scratch.succeeds_on("standby", &["get", "key"]), "another");
}

#[test]
fn a_promotion_that_cannot_be_leaves_a_standby_that_is_read_and_may_be_tried_again() {
    let scratch = Scratch::new("tried");
    let primary = serve_primary(&scratch, &[]);
    let mut standby = serve_standby(&scratch, &[]);
    assert_eq!(client(&scratch, "data").sets("key", "before"), "STORED");
    let mut reading = client(&scratch, "standby");
    wait_until("the item", || reading.gets("key").is_some());
    standby.signal("-STOP");
    let before = scratch.objects("depot/packs");
    assert_eq!(client(&scratch, "data").sets("key", "last"), "STORED");
    primary.stop();
    // The last backup loses its packs.
    let packs: Vec<_> = scratch.objects("depot/packs").into_iter().filter(|pack| !before.contains(pack)).collect();
    fs::create_dir(scratch.join("lost")).unwrap();
    let lost = |pack: &Path| scratch.join("lost").join(pack.file_name().unwrap());
    packs.iter().for_each(|pack| fs::rename(pack, lost(pack)).unwrap());
    standby.signal("-CONT");
    for _ in 0..2 {
        let told = scratch.fails_on("standby", &["promote", "depot"]);
        assert!(told.contains("at depot lacks bytes: packs/"), "{told}");
        assert!(reading.gets("key").is_some());
        let answer = reading.sets("key", "value");
        assert!(answer.starts_with("SERVER_ERROR "), "{answer}");
    }
    packs.iter().for_each(|pack| fs::rename(lost(pack), pack).unwrap());
    wait_until("the last backup", || reading.gets("key").as_deref() == Some("last"));
    let (printed, told) = promotes(&scratch, &[]);
    began(&printed, 2);
    assert!(told.contains("nothing is lost"), "{told}");
    assert_eq!(reading.sets("key", "value"), "STORED");
    standby.stop();
}
