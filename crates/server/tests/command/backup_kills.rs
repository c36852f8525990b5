//! Backups, restores, prunes, promotions and standbys that are killed at any moment: what is there afterwards is whole, and the next try succeeds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::depots::{Client, Scratch, large_items, number, wait_until};
use crate::outside::{Served, failed, stop, succeeded, tapetum};

/// How long something is waited for that comes in a moment.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many moments of a command are tried.
const MOMENTS: u32 = 8;

/// Runs a command, and returns how long it took.
#[track_caller]
fn timed(command: &mut Command) -> Duration {
    let began = Instant::now();
    succeeded(command.output().unwrap());
    began.elapsed()
}

/// Kills a command some time after it began.
fn kill_after(command: &mut Command, time: Duration) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    sleep(time);
    kill(&mut child);
}

fn kill(child: &mut Child) {
    // It may have ended.
    let _ = child.kill();
    child.wait().unwrap();
}

/// Lets the lease of a killed command be over, as it is ten seconds later.
fn end_lease(scratch: &Scratch, depot: &str) {
    // There may be none yet.
    let _ = fs::remove_dir_all(scratch.join(depot).join("lease"));
}

#[track_caller]
fn only_whole_backups(scratch: &Scratch, depot: &str) {
    let backups = scratch.objects(&format!("{depot}/backups"));
    if backups.iter().all(|path| is_unfinished(path)) {
        return;
    }
    assert!(scratch.listed(depot).iter().all(|backup| backup["state"] == "whole"));
    assert!(scratch.succeeds(&["verify", depot]).contains(" whole: "));
}

fn is_unfinished(path: &Path) -> bool {
    path.to_str().unwrap().contains(".unfinished-")
}

fn unfinished(scratch: &Scratch, depot: &str) -> usize {
    let folders = ["packs", "backups", "lease"].map(|folder| scratch.objects(&format!("{depot}/{folder}")));
    folders.iter().flatten().filter(|path| is_unfinished(path)).count()
}

#[test]
fn a_backup_that_was_killed_leaves_whole_ones_and_the_next_succeeds() {
    let scratch = Scratch::new("kill-create");
    scratch.fill("data");
    scratch.loads("data", "hashed", &large_items(8));
    let time = timed(&mut scratch.on("data", &["backup", "create", "timed"]));
    let create = ["backup", "create", "depot"];
    for moment in 0..MOMENTS {
        scratch.succeeds_on("data", &["put", "moment", &moment.to_string(), "--keyspace", "ordered"]);
        kill_after(&mut scratch.on("data", &create), time * moment / MOMENTS);
        end_lease(&scratch, "depot");
        only_whole_backups(&scratch, "depot");
    }
    scratch.succeeds_on("data", &create);
    only_whole_backups(&scratch, "depot");
    let last = number(scratch.listed("depot").last().unwrap(), "number");
    scratch.restores("depot", last, "restored");
    assert!(scratch.shown("restored") == scratch.shown("data"));
    scratch.succeeds(&["prune", "depot", "--keep", "1"]);
    assert_eq!(unfinished(&scratch, "depot"), 0);
    only_whole_backups(&scratch, "depot");
}

#[test]
fn a_backup_whose_caller_was_killed_is_given_up_by_the_server() {
    let scratch = Scratch::new("kill-caller");
    scratch.fill("data");
    scratch.loads("data", "hashed", &large_items(8));
    let mut serving = scratch.on("data", &["serve", "--memcached", "none", "--threads", "1"]);
    let mut server = Served::start_when(&mut serving, "to commands at").child;
    let time = timed(&mut scratch.on("data", &["backup", "create", "timed"]));
    let create = ["backup", "create", "depot"];
    for moment in 0..MOMENTS {
        kill_after(&mut scratch.on("data", &create), time * moment / MOMENTS);
        wait_until("the end of the freeze", || scratch.succeeds_on("data", &["stats"]).contains("\nfreezes 0\n"));
        // The lease was given back: nobody waits for it.
        let is_released = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains("released"));
        wait_until("the lease", || scratch.objects("depot/lease").last().is_none_or(is_released));
        only_whole_backups(&scratch, "depot");
    }
    scratch.succeeds_on("data", &create);
    only_whole_backups(&scratch, "depot");
    stop(&mut server);
}

#[test]
fn a_server_that_was_killed_in_a_backup_leaves_whole_ones_and_makes_the_next() {
    let scratch = Scratch::new("kill-server");
    scratch.fill("data");
    scratch.loads("data", "hashed", &large_items(8));
    let serve = || {
        let mut serving = scratch.on("data", &["serve", "--memcached", "none", "--threads", "1"]);
        Served::start_when(&mut serving, "to commands at").child
    };
    let mut server = serve();
    let time = timed(&mut scratch.on("data", &["backup", "create", "timed"]));
    let create = ["backup", "create", "depot"];
    for moment in 0..MOMENTS {
        scratch.succeeds_on("data", &["put", "moment", &moment.to_string(), "--keyspace", "ordered"]);
        let mut caller = scratch.on("data", &create).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        sleep(time * moment / MOMENTS);
        kill(&mut server);
        caller.wait().unwrap();
        end_lease(&scratch, "depot");
        only_whole_backups(&scratch, "depot");
        server = serve();
    }
    scratch.succeeds_on("data", &create);
    only_whole_backups(&scratch, "depot");
    let last = number(scratch.listed("depot").last().unwrap(), "number");
    scratch.restores("depot", last, "restored");
    assert!(scratch.shown("restored") == scratch.shown("data"));
    stop(&mut server);
}

#[test]
fn a_restore_that_was_killed_leaves_no_store_and_is_tried_again() {
    let scratch = Scratch::new("kill-restore");
    scratch.fill("data");
    scratch.loads("data", "hashed", &large_items(8));
    scratch.succeeds_on("data", &["backup", "create", "depot"]);
    let all = scratch.shown("data");
    let restore = |into: &str| {
        let mut command = tapetum(&["backup", "restore", "depot", "--into", into]);
        command.current_dir(scratch.join("."));
        command
    };
    let time = timed(&mut restore("timed"));
    for moment in 0..MOMENTS {
        kill_after(&mut restore("new"), time * moment / MOMENTS);
        let again = restore("new").output().unwrap();
        match again.status.success() {
            true => drop(succeeded(again)),
            // It was whole by then.
            false => assert!(failed(again).contains("there is something at new/drive already"), "moment {moment}"),
        }
        assert!(scratch.shown("new") == all, "moment {moment}");
        assert!(scratch.succeeds_on("new", &["check"]).contains("no damage found"));
        let files = scratch.objects("new");
        assert!(files.iter().all(|path| !path.to_str().unwrap().contains("unfinished")), "{files:?}");
        fs::remove_dir_all(scratch.join("new")).unwrap();
    }
}

/// Waits for something that is over in a moment.
#[track_caller]
fn look_until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it did not come");
    }
}

/// Makes ten backups, each with packs of its own.
fn make_ten(scratch: &Scratch) {
    for round in 0..10 {
        scratch.succeeds_on("data", &["put", "key", &format!("value {round}")]);
        scratch.succeeds_on("data", &["backup", "create", "depot", "--anew"]);
    }
}

/// Prunes a depot to two backups after another prune was killed, and restores the last one.
#[track_caller]
fn prune_again(scratch: &Scratch, depot: &str) {
    end_lease(scratch, depot);
    only_whole_backups(scratch, depot);
    scratch.succeeds(&["prune", depot, "--keep", "2"]);
    only_whole_backups(scratch, depot);
    assert_eq!(scratch.objects(&format!("{depot}/backups")).len(), 2);
    assert_eq!(unfinished(scratch, depot), 0);
    let (last, restored) = (number(scratch.listed(depot).last().unwrap(), "number"), format!("of-{depot}"));
    scratch.restores(depot, last, &restored);
    assert_eq!(scratch.succeeds_on(&restored, &["get", "key"]), "value 9");
}

#[test]
fn a_prune_that_was_killed_leaves_whole_backups_and_is_tried_again() {
    let scratch = Scratch::new("kill-prune");
    make_ten(&scratch);
    let prune = |depot: &str| {
        let mut command = tapetum(&["backup", "prune", depot, "--keep", "2"]);
        command.current_dir(scratch.join("."));
        command
    };
    scratch.copy("depot", "timed");
    let time = timed(&mut prune("timed"));
    for moment in 0..MOMENTS {
        let depot = format!("depot{moment}");
        scratch.copy("depot", &depot);
        kill_after(&mut prune(&depot), time * (moment + 1) / (MOMENTS + 1));
        prune_again(&scratch, &depot);
    }
}

#[test]
fn a_server_that_was_killed_in_its_own_prune_leaves_whole_backups() {
    let scratch = Scratch::new("kill-keep");
    make_ten(&scratch);
    // Serves until its first backup is there, behind which it prunes.
    let serve = |depot: &str| {
        scratch.copy("depot", depot);
        let words = ["serve", "--memcached", "none", "--threads", "1", "--keep", "2", "--lease", "1", "--backup-to"];
        let mut serving = scratch.on("data", &[&words[..], &[depot]].concat());
        let server = serving.stderr(Stdio::null()).spawn().unwrap();
        let folder = format!("{depot}/backups");
        let is_eleventh = |path: &PathBuf| path.to_str().unwrap().contains("-000000000011-");
        look_until(|| scratch.objects(&folder).iter().any(is_eleventh));
        (server, folder)
    };
    let (mut server, folder) = serve("timed");
    let began = Instant::now();
    look_until(|| scratch.objects(&folder).len() == 2);
    // The packs are removed behind the manifests.
    let time = began.elapsed() * 2;
    kill(&mut server);
    for moment in 0..MOMENTS {
        let depot = format!("depot{moment}");
        let (mut server, _) = serve(&depot);
        sleep(time * moment / MOMENTS);
        kill(&mut server);
        prune_again(&scratch, &depot);
    }
}

#[test]
fn a_promotion_that_was_killed_is_tried_again() {
    kill_promotions(false);
}

#[test]
fn a_standby_that_was_killed_in_its_own_promotion_is_promoted_again() {
    kill_promotions(true);
}

/// `is_served`: the standby is killed, rather than the command.
fn kill_promotions(is_served: bool) {
    let scratch = Scratch::new(&format!("kill-promote-{is_served}"));
    scratch.fill("data");
    let words = ["serve", "--memcached", "none", "--threads", "1", "--every", "1", "--lease", "1"];
    let serve = |data: &str, more: [&str; 2]| {
        Served::start_when(&mut scratch.on(data, &[&words[..], &more].concat()), "to commands at")
    };
    let primary = serve("data", ["--backup-to", "depot"]);
    scratch.waits_for_backups("depot", 1);
    serve("standby", ["--follow", "depot"]).stop();
    scratch.succeeds_on("data", &["put", "last", "value", "--keyspace", "hashed"]);
    primary.stop();
    let all = scratch.shown("data");
    let promote = |name: &str| scratch.on(&format!("standby{name}"), &["promote", &format!("depot{name}")]);
    let standby = |name: &str| {
        let follow = || serve(&format!("standby{name}"), ["--follow", &format!("depot{name}")]);
        is_served.then(|| follow().child)
    };
    let names: Vec<String> = (0..MOMENTS).map(|moment| moment.to_string()).collect();
    for name in names.iter().map(String::as_str).chain(["timed"]) {
        scratch.copy("depot", &format!("depot{name}"));
        scratch.copy("standby", &format!("standby{name}"));
    }
    let mut server = standby("timed");
    let time = timed(&mut promote("timed"));
    server.iter_mut().for_each(kill);
    for (moment, name) in names.iter().enumerate() {
        let time = time * moment as u32 / MOMENTS;
        match standby(name) {
            None => kill_after(&mut promote(name), time),
            Some(mut server) => {
                let mut caller = promote(name).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                sleep(time);
                kill(&mut server);
                caller.wait().unwrap();
            }
        }
    }
    // Each waits for the lease of the one that was killed.
    let tries = names.iter().map(|name| {
        let child = promote(name).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        (name, child)
    });
    for (name, child) in tries.collect::<Vec<_>>() {
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        eprintln!("moment {name}: {told}");
        assert!(succeeded(output).contains("began with backup"), "moment {name}: {told}");
        let (depot, standby) = (format!("depot{name}"), format!("standby{name}"));
        assert!(scratch.shown(&standby) == all, "moment {name}");
        scratch.succeeds_on(&standby, &["backup", "create", &depot]);
        only_whole_backups(&scratch, &depot);
        let told = scratch.fails_on("data", &["backup", "create", &depot]);
        assert!(told.contains("is not of this store's past"), "{told}");
    }
}

#[test]
fn a_standby_that_was_killed_goes_on_following() {
    let scratch = Scratch::new("kill-standby");
    scratch.fill("data");
    let words = ["serve", "--threads", "1", "--every", "1", "--lease", "1"];
    let more = ["--memcached", "unix:primary", "--backup-to", "depot"];
    let primary = Served::start(&mut scratch.on("data", &[&words[..], &more].concat()));
    scratch.waits_for_backups("depot", 1);
    let mut writing = Client::open(&scratch.join("primary"));
    let follow = ["--memcached", "unix:standby.socket", "--follow", "depot"];
    for moment in 0..MOMENTS {
        let mut standby = Served::start(&mut scratch.on("standby", &[&words[..], &follow].concat()));
        let value = format!("value {moment}");
        assert_eq!(writing.sets("key", &value), "STORED");
        if moment % 2 == 0 {
            let mut reading = Client::open(&scratch.join("standby.socket"));
            wait_until("the item", || reading.gets("key").as_ref() == Some(&value));
        }
        sleep(Duration::from_millis(u64::from(moment) * 37));
        kill(&mut standby.child);
    }
    let mut standby = Served::start(&mut scratch.on("standby", &[&words[..], &follow].concat()));
    let mut reading = Client::open(&scratch.join("standby.socket"));
    assert_eq!(writing.sets("key", "last"), "STORED");
    wait_until("the item", || reading.gets("key").as_deref() == Some("last"));
    assert!(scratch.shown("standby") == scratch.shown("data"));
    primary.stop();
    stop(&mut standby.child);
}
