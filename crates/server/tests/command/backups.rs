//! Backups from outside: made of served and closed stores, listed, verified, restored and pruned; and what is refused.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tapetum::backup::BackupName;

use crate::depots::{
    LARGE_BYTES, Scratch, Writer, counted, device_byte, large_items, nbd_address, number, wait_until, write_device,
};
use crate::outside::{Served, failed, stop, succeeded};
use crate::standby::send_signal;

/// Serves a store with a block device to all kinds of clients.
fn serve(scratch: &Scratch, data: &str) -> (Served, String) {
    let words = ["serve", "--threads", "1", "--nbd", "127.0.0.1:0", "--memcached", "unix:socket", "--keyspace"];
    let server = Served::start_when(&mut scratch.on(data, &[&words[..], &["hashed"]].concat()), "to NBD clients at");
    let address = nbd_address(&server.log);
    (server, address)
}

#[test]
fn backups_of_a_served_store_are_of_one_moment_and_restore_everything() {
    let scratch = Scratch::new("served");
    scratch.fill("data");
    let (server, device) = serve(&scratch, "data");
    write_device(&device, 65536, 7);
    let first = scratch.shown("data");
    assert!(first.len() > 4000 && first.iter().any(|line| line.contains("id string")), "{:?}", &first[..5]);
    assert!(scratch.succeeds_on("data", &["backup", "create", "depot"]).starts_with("backup 1 has 4 keyspaces in "));
    write_device(&device, 65536, 8);
    let writer = Writer::start(&scratch.join("socket"));
    wait_until("a set", || writer.count() > 100);
    let before = writer.count();
    scratch.succeeds_on("data", &["backup", "create", "depot"]);
    let after = writer.count();
    wait_until("a set", || writer.count() > after + 100);
    let acknowledged = writer.stop();
    scratch.succeeds_on("data", &["delete", "key00007", "--keyspace", "ordered"]);
    let third = scratch.shown("data");
    assert_eq!(counted(&third), acknowledged);
    scratch.succeeds_on("data", &["backup", "create", "depot"]);
    server.stop();
    assert!(scratch.succeeds(&["verify", "depot"]).starts_with("3 backups are whole: "));
    let list = scratch.listed("depot");
    let copied: Vec<u64> = list.iter().map(|backup| number(backup, "copied_bytes")).collect();
    assert!(copied[0] > 3 * LARGE_BYTES as u64 && copied[1..].iter().all(|bytes| bytes * 2 < copied[0]), "{copied:?}");
    assert!(list.iter().all(|backup| backup["state"] == "whole" && number(backup, "generation") == 1));
    for backup in 1..=3 {
        scratch.restores("depot", backup, &format!("restored{backup}"));
    }
    assert!(scratch.shown("restored1") == first, "the first backup differs");
    let set = counted(&scratch.dumped("restored2", "hashed"));
    assert!((before..=acknowledged).contains(&set), "{set} sets, {before} were acknowledged before");
    assert!(scratch.shown("restored3") == third, "the third backup differs");
    for (data, byte) in [("restored1", 7), ("restored2", 8), ("restored3", 8)] {
        let (server, device) = serve(&scratch, data);
        assert_eq!((device_byte(&device, 65536), device_byte(&device, 0)), (byte, 0), "{data}");
        server.stop();
    }
}

#[test]
fn backups_of_a_closed_store_copy_what_is_new_and_each_is_restored_as_it_was() {
    let scratch = Scratch::new("closed");
    scratch.fill("data");
    let first = scratch.shown("data");
    let told = scratch.succeeds_on("data", &["backup", "create", "deep/depot"]);
    assert!(told.starts_with("backup 1 has 4 keyspaces in ") && told.ends_with(" were copied\n"), "{told}");
    scratch.succeeds_on("data", &["put", "key00001", "another", "--keyspace", "hashed"]);
    scratch.succeeds_on("data", &["put", "key00002", "another", "--keyspace", "ordered"]);
    scratch.succeeds_on("data", &["keyspace", "create", "later"]);
    let second = scratch.shown("data");
    scratch.succeeds_on("data", &["backup", "create", "deep/depot"]);
    scratch.succeeds_on("data", &["backup", "create", "deep/depot", "--anew"]);
    let list = scratch.listed("deep/depot");
    let copied: Vec<u64> = list.iter().map(|backup| number(backup, "copied_bytes")).collect();
    assert!(copied[1] * 2 < copied[0] && copied[2] * 10 > copied[0] * 9, "{copied:?}");
    assert_eq!(list[1]["keyspaces"].as_array().unwrap().len(), 5);
    assert!(first != second);
    for (backup, shown) in [(1, &first), (2, &second), (3, &second)] {
        let data = format!("restored{backup}");
        scratch.restores("deep/depot", backup, &data);
        assert!(scratch.shown(&data) == *shown, "backup {backup} differs");
    }
    // A store that is a file, and the number that is meant when none is given.
    assert!(scratch.succeeds(&["restore", "deep/depot", "--into", "one.drive"]).contains("of backup 3"));
    assert!(scratch.join("one.drive").is_file());
}

#[test]
fn a_prune_keeps_the_last_backups_whole() {
    let scratch = Scratch::new("prune");
    scratch.loads("data", "default", &large_items(1));
    scratch.succeeds_on("data", &["backup", "create", "depot"]);
    for round in 0..3 {
        scratch.succeeds_on("data", &["put", "key", &format!("value {round}")]);
        scratch.succeeds_on("data", &["backup", "create", "depot"]);
    }
    let before = scratch.objects("depot/packs").len();
    assert!(scratch.succeeds(&["prune", "depot", "--keep", "2"]).starts_with("2 backups were removed, and "));
    assert_eq!(scratch.objects("depot/backups").len(), 2);
    assert!(scratch.succeeds(&["prune", "depot", "--keep", "1"]).starts_with("1 backup was removed, and "));
    assert!(scratch.succeeds(&["prune", "depot", "--keep", "1"]).starts_with("0 backups were removed, and 0 packs"));
    assert!(scratch.objects("depot/packs").len() < before);
    assert!(scratch.succeeds(&["verify", "depot"]).starts_with("1 backup is whole"));
    scratch.restores("depot", 4, "restored");
    assert_eq!(scratch.dumped("restored", "default"), scratch.dumped("data", "default"));
    let gone = scratch.fails(&["restore", "depot", "--into", "gone", "--number", "1"]);
    assert!(gone.contains("depot has no backup 1") && !scratch.is_there("gone"), "{gone}");
    // The next one has a number that none had.
    assert!(scratch.succeeds_on("data", &["backup", "create", "depot"]).starts_with("backup 5 "));
}

#[test]
fn a_folder_without_backups_or_with_those_of_another_store_is_refused_and_left_alone() {
    let scratch = Scratch::new("refused");
    scratch.succeeds_on("data", &["put", "key", "value"]);
    scratch.succeeds_on("other", &["put", "key", "another"]);
    fs::create_dir(scratch.join("empty")).unwrap();
    let commands: [&[&str]; 4] = [&["list"], &["verify"], &["restore", "--into", "new"], &["prune", "--keep", "1"]];
    for words in commands {
        let with = |folder: &'static str| [&words[..1], &[folder], &words[1..]].concat();
        let told = scratch.fails(&with("empty"));
        assert_eq!(told, "error: empty has no backups: make one with `tapetum backup create`\n");
        let told = scratch.fails(&with("absent"));
        assert_eq!(told, "error: cannot read absent: No such file or directory (os error 2)\n");
    }
    assert!(!scratch.is_there("absent") && !scratch.is_there("new") && scratch.objects("empty").is_empty());

    scratch.succeeds_on("data", &["backup", "create", "depot"]);
    let lease = scratch.objects("depot/lease");
    let told = scratch.fails_on("other", &["backup", "create", "depot"]);
    assert!(told.contains("/depot has backups of another store: give each store a place of its own\n"), "{told}");
    let told = scratch.fails_on("other", &["serve", "--memcached", "none", "--backup-to", "depot", "--lease", "1"]);
    assert!(told.contains("error: depot has backups of another store"), "{told}");
    assert_eq!(scratch.listed("depot").len(), 1);
    assert_eq!(scratch.objects("depot/backups").len(), 1);
    assert!(scratch.objects("depot/lease").len() >= lease.len());

    // Other files stay beside backups, but not a file that says whose they are.
    fs::write(scratch.join("empty/letter"), "dear").unwrap();
    scratch.succeeds_on("other", &["backup", "create", "empty"]);
    assert_eq!(fs::read(scratch.join("empty/letter")).unwrap(), b"dear");
    fs::create_dir(scratch.join("foreign")).unwrap();
    fs::write(scratch.join("foreign/store"), "bread\n").unwrap();
    let told = scratch.fails_on("data", &["backup", "create", "foreign"]);
    assert!(told.contains("foreign holds other things and no backups: give an empty or new folder"), "{told}");
    assert!(told.contains("nothing was written") && scratch.objects("foreign").len() == 1, "{told}");
    let told = scratch.fails_on("data", &["serve", "--memcached", "none", "--backup-to", "foreign"]);
    assert!(told.contains("foreign holds other things") && scratch.objects("foreign").len() == 1, "{told}");

    let told = scratch.fails(&["restore", "depot", "--into", "new", "--number", "7"]);
    assert_eq!(told, "error: depot has no backup 7: `tapetum backup list` prints those there are\n");
    for into in ["other", "other/drive", "depot/store"] {
        let told = scratch.fails(&["restore", "depot", "--into", into]);
        assert!(told.contains("already: restore into a new directory or file"), "{into}: {told}");
    }
    let mut server = Served::start_when(&mut scratch.on("other", &["serve", "--memcached", "none"]), "to commands at");
    let told = scratch.fails(&["restore", "depot", "--into", "other"]);
    assert!(told.contains("there is something at other/drive already"), "{told}");
    assert_eq!(scratch.succeeds_on("other", &["get", "key"]), "another");
    stop(&mut server.child);
    assert!(!scratch.is_there("new") && scratch.objects("depot/packs").len() == 1);
}

/// How a file is harmed.
fn harm(path: &Path, how: &str) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    match how {
        "removed" => return fs::remove_file(path).unwrap(),
        "cut" => bytes.truncate(middle),
        _ => bytes[middle] ^= 0x10,
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn harmed_packs_are_named_and_what_is_left_is_restored_and_repaired() {
    let scratch = Scratch::new("packs");
    // Each backup adds a pack; the last one needs all of them.
    let (mut packs, mut seen) = (Vec::new(), BTreeSet::new());
    scratch.fill("data");
    for round in 0..3 {
        if round > 0 {
            let large = large_items(3 + round).lines().last().map(|line| format!("{line}\n"));
            scratch.loads("data", if round == 1 { "hashed" } else { "ordered" }, &large.unwrap());
        }
        scratch.succeeds_on("data", &["backup", "create", "depot"]);
        for path in scratch.objects("depot/packs") {
            if seen.insert(path.clone()) {
                packs.push(path.file_name().unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    let all: BTreeSet<String> = scratch.shown("data").into_iter().collect();
    assert!(packs.len() >= 3, "{packs:?}");
    let which = [&packs[0], &packs[1], &packs[packs.len() - 1]];
    for (place, pack) in which.into_iter().enumerate() {
        for how in ["removed", "cut", "flipped"] {
            let name = format!("{how}{place}");
            let (depot, into) = (format!("depot-{name}"), format!("of-{name}"));
            scratch.copy("depot", &depot);
            harm(&scratch.join(format!("{depot}/packs/{pack}")), how);
            let told = scratch.fails(&["verify", &depot]);
            assert!(told.contains(&format!("at {depot} lacks bytes: packs/{pack} is gone, cut or rotten")), "{told}");
            let told = scratch.fails(&["restore", &depot, "--into", &into]);
            assert!(told.contains(&format!("backup 3 at {depot} lacks bytes: packs/{pack} ")), "{told}");
            assert!(told.contains("--partial") && !scratch.is_there(&into), "{told}");
            let partial = scratch.backup(&["restore", &depot, "--into", &into, "--partial"]);
            if place == 2 {
                // The state of the store is in the last pack.
                assert!(failed(partial).contains("lacks bytes") && !scratch.is_there(&into), "{name}");
                continue;
            }
            let told = String::from_utf8(partial.stderr.clone()).unwrap();
            succeeded(partial);
            assert!(told.contains("1 pack is gone, cut or rotten") && told.contains("tapetum repair"), "{told}");
            scratch.succeeds_on(&into, &["repair", "--yes"]);
            assert!(scratch.succeeds_on(&into, &["check"]).contains("no damage found"), "{name}");
            let left: BTreeSet<String> = scratch.shown(&into).into_iter().collect();
            let other = left.iter().find(|line| !all.contains(*line)).map(|line| &line[..line.len().min(100)]);
            assert_eq!(other, None, "{name}: an item that never was");
            assert!(left.len() < all.len(), "{name}: nothing is lost");
        }
    }
    // A backup that does not need the pack is whole, and the next one copies again what is gone.
    harm(&scratch.join(format!("depot/packs/{}", packs[0])), "removed");
    scratch.succeeds_on("data", &["backup", "create", "depot"]);
    assert!(scratch.succeeds(&["verify", "depot", "--number", "4"]).starts_with("1 backup is whole"));
    scratch.restores("depot", 4, "restored");
    assert!(scratch.shown("restored").into_iter().collect::<BTreeSet<_>>() == all);
}

#[test]
fn backups_whose_owner_is_not_told_are_restored_and_no_other_store_takes_them_over() {
    let scratch = Scratch::new("ownerless");
    scratch.succeeds_on("other", &["put", "key", "other"]);
    for value in ["first", "second"] {
        scratch.succeeds_on("data", &["put", "key", value]);
        scratch.succeeds_on("data", &["backup", "create", "depot"]);
    }
    let owner = fs::read(scratch.join("depot/store")).unwrap();
    fs::remove_file(scratch.join("depot/store")).unwrap();
    for words in [&["list", "depot"][..], &["verify", "depot"]] {
        let output = scratch.backup(words);
        let told = String::from_utf8(output.stderr.clone()).unwrap();
        assert!(told.contains("the file `store` is gone from depot, which says whose backups these are"), "{told}");
        succeeded(output);
    }
    let other = "depot has backups of another store";
    assert!(scratch.fails_on("other", &["backup", "create", "depot"]).contains(other));
    let serve = ["serve", "--memcached", "none", "--backup-to", "depot", "--lease", "1"];
    assert!(scratch.fails_on("other", &serve).contains(other));
    assert!(scratch.fails_on("other", &["promote", "depot", "--force"]).contains(other));
    scratch.restores("depot", 2, "restored");
    assert!(!scratch.is_there("depot/store"));
    assert!(scratch.succeeds_on("data", &["backup", "create", "depot"]).starts_with("backup 3 "));
    assert_eq!(fs::read(scratch.join("depot/store")).unwrap(), owner);

    // Neither do the manifests tell it.
    fs::remove_file(scratch.join("depot/store")).unwrap();
    scratch.copy("depot", "several");
    scratch.succeeds_on("other", &["backup", "create", "others"]);
    let of_other = scratch.objects("others/backups").pop().unwrap();
    fs::copy(&of_other, scratch.join("several/backups").join(of_other.file_name().unwrap())).unwrap();
    scratch.copy("depot", "rotten");
    scratch.objects("rotten/backups").iter().for_each(|manifest| harm(manifest, "cut"));
    for depot in ["several", "rotten"] {
        let told = format!("{depot} is damaged: it has backups, the file `store` that says whose they are is gone");
        for data in ["data", "other"] {
            let error = scratch.fails_on(data, &["backup", "create", depot]);
            assert!(error.contains(&told) && error.contains("nothing was written"), "{error}");
        }
        assert!(scratch.fails(&["prune", depot, "--keep", "1"]).contains(&told));
        assert!(!scratch.is_there(&format!("{depot}/store")));
    }
    scratch.restores("several", 3, "of-several");
    assert_eq!(scratch.succeeds_on("of-several", &["get", "key"]), "second");
}

#[test]
fn a_manifest_that_is_gone_is_missed_until_it_is_pruned_and_its_number_is_not_given_again() {
    let scratch = Scratch::new("missing");
    for value in ["first", "second", "third"] {
        scratch.succeeds_on("data", &["put", "key", value]);
        scratch.succeeds_on("data", &["backup", "create", "depot"]);
    }
    let states = |depot: &str| {
        let state = |backup: &Value| (number(backup, "number"), backup["state"].as_str().unwrap().to_owned());
        scratch.listed(depot).iter().map(state).collect::<Vec<_>>()
    };
    let manifests = scratch.objects("depot/backups");
    for gone in 1..=3u64 {
        let depot = format!("depot{gone}");
        scratch.copy("depot", &depot);
        fs::remove_file(scratch.join(&depot).join("backups").join(manifests[gone as usize - 1].file_name().unwrap()))
            .unwrap();
        let told = (1..=3).map(|number| (number, if number == gone { "missing" } else { "whole" }.to_owned()));
        assert_eq!(states(&depot), told.collect::<Vec<_>>());
        let told = scratch.fails(&["verify", &depot]);
        assert!(
            told.starts_with(&format!("error: backup {gone} at {depot} is gone, and `tapetum backup prune`")),
            "{told}"
        );
        assert!(scratch.succeeds_on("data", &["backup", "create", &depot]).starts_with("backup 4 "));
        assert!(scratch.fails(&["verify", &depot]).contains("is gone"));
        scratch.succeeds(&["prune", &depot, "--keep", "1"]);
        assert!(scratch.succeeds(&["verify", &depot]).starts_with("1 backup is whole"));
        assert_eq!(states(&depot), [(4, "whole".into())]);
    }
    // All of them.
    manifests.iter().for_each(|manifest| fs::remove_file(manifest).unwrap());
    assert!(states("depot").iter().all(|(_, state)| state == "missing"));
    let told = scratch.fails(&["verify", "depot"]);
    assert!(told.contains("backup 1 and 2 more at depot are gone"), "{told}");
    assert!(scratch.fails(&["restore", "depot", "--into", "new"]).contains("depot has no backups"));
    assert!(scratch.succeeds_on("data", &["backup", "create", "depot"]).starts_with("backup 4 "));
}

#[test]
fn a_harmed_manifest_is_named_and_newer_formats_are_refused() {
    let scratch = Scratch::new("manifests");
    scratch.succeeds_on("data", &["put", "key", "first"]);
    scratch.succeeds_on("data", &["backup", "create", "depot"]);
    scratch.succeeds_on("data", &["put", "key", "second"]);
    scratch.succeeds_on("data", &["backup", "create", "depot"]);
    let last = scratch.objects("depot/backups").pop().unwrap();
    let object = last.file_name().unwrap().to_str().unwrap().to_owned();
    for how in ["cut", "flipped"] {
        let depot = format!("depot-{how}");
        scratch.copy("depot", &depot);
        harm(&scratch.join(&depot).join("backups").join(&object), how);
        let bad = format!("the manifest of backup 2 at {depot} is cut or rotten (backups/{object})");
        assert!(scratch.fails(&["verify", &depot]).contains(&bad));
        assert!(scratch.fails(&["restore", &depot, "--into", "new"]).contains(&bad) && !scratch.is_there("new"));
        let told = scratch.fails(&["restore", &depot, "--into", "new", "--partial"]);
        assert!(told.contains(&bad) && !scratch.is_there("new"), "{told}");
        assert!(scratch.fails(&["prune", &depot, "--keep", "1"]).contains(&bad));
        assert_eq!(scratch.objects(&format!("{depot}/backups")).len(), 2, "nothing was pruned");
        let list = scratch.listed(&depot);
        assert_eq!([&list[0]["state"], &list[1]["state"]], ["whole", "unreadable"]);
        scratch.restores(&depot, 1, &format!("of-{how}"));
        assert_eq!(scratch.succeeds_on(&format!("of-{how}"), &["get", "key"]), "first");
        // It is no reason to have no further backup.
        assert!(scratch.succeeds_on("data", &["backup", "create", &depot]).starts_with("backup 3 "));
        scratch.restores(&depot, 3, &format!("later-{how}"));
    }

    let newer = "has backups of the format 2, which this tapetum does not know: use the newer tapetum that made them";
    scratch.copy("depot", "newer");
    let mut bytes = fs::read(&last).unwrap();
    bytes[8] = 2;
    let name = BackupName::parse(&format!("backups/{object}")).unwrap();
    let name = BackupName { digest: tapetum::backup::Digest::of(&bytes), ..name };
    fs::remove_file(scratch.join("newer/backups").join(&object)).unwrap();
    fs::write(scratch.join("newer").join(name.object()), bytes).unwrap();
    assert!(scratch.fails(&["verify", "newer"]).contains(newer));
    assert!(scratch.fails(&["restore", "newer", "--into", "new"]).contains(newer) && !scratch.is_there("new"));
    scratch.restores("newer", 1, "older");

    scratch.copy("depot", "newest");
    let text = fs::read_to_string(scratch.join("newest/store")).unwrap();
    assert!(text.starts_with("tapetum backups, format 1\nstore "), "{text}");
    fs::write(scratch.join("newest/store"), text.replace("format 1", "format 2")).unwrap();
    let lease = scratch.objects("newest/lease");
    let commands: [&[&str]; 4] = [&["list"], &["verify"], &["restore", "--into", "new"], &["prune", "--keep", "1"]];
    for words in commands {
        assert!(scratch.fails(&[&words[..1], &["newest"], &words[1..]].concat()).contains(newer), "{words:?}");
    }
    assert!(scratch.fails_on("data", &["backup", "create", "newest"]).contains(newer));
    assert!(!scratch.is_there("new"));
    assert_eq!(scratch.objects("newest/lease"), lease, "nothing is written where another format is");
}

#[test]
fn a_place_that_takes_no_backup_is_named_and_the_store_goes_on() {
    let scratch = Scratch::new("places");
    scratch.loads("data", "default", &large_items(8));
    fs::write(scratch.join("file"), "a letter").unwrap();
    let told = scratch.fails_on("data", &["backup", "create", "file/in"]);
    assert!(told.contains("cannot make the folder ") && told.contains("Not a directory"), "{told}");
    let told = scratch.fails_on("data", &["backup", "create", "file"]);
    assert!(told.contains("cannot make the folder "), "{told}");
    assert!(scratch.fails(&["list", "file"]).contains("it is no folder: give another place for backups"));
    assert_eq!(fs::read(scratch.join("file")).unwrap(), b"a letter");
    assert_eq!(scratch.dumped("data", "default").len(), 8);
}

/// Runs a script in a namespace of its own, where nothing stays mounted, with the command as `$0`. `None`: the system allows no namespaces.
fn in_namespace(scratch: &Scratch, script: &str) -> Option<Output> {
    if !Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success()) {
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, env!("CARGO_BIN_EXE_tapetum")]).current_dir(&**scratch);
    Some(command.output().unwrap())
}

#[test]
fn a_full_place_is_named_and_takes_a_backup_when_there_is_room() {
    let scratch = Scratch::new("full");
    scratch.loads("data", "default", &large_items(8));
    let script = "mount -t tmpfs -o size=1m none full && ! $0 backup create full --data data --memory 64MiB && \
        ! $0 backup list full && mount -o remount,size=64m full && $0 backup create full --data data --memory 64MiB && \
        $0 backup verify full && ! ls -A full/packs | grep unfinished";
    fs::create_dir(scratch.join("full")).unwrap();
    let Some(output) = in_namespace(&scratch, script) else { return };
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("No space left on device"), "{told}");
    assert!(told.contains("free some there, as with `tapetum backup prune`, and try again"), "{told}");
    assert!(told.contains("full has no backups"), "{told}");
    assert!(succeeded(output).contains("1 backup is whole"), "{told}");
}

#[test]
fn a_place_that_is_read_only_takes_no_backup_and_gives_those_it_has() {
    let scratch = Scratch::new("read-only");
    scratch.succeeds_on("data", &["put", "key", "value"]);
    fs::create_dir(scratch.join("depot")).unwrap();
    let script = "set -e; on='--data data --memory 64MiB'; mount -t tmpfs none depot; \
        $0 backup create depot $on; mount -o remount,ro depot; \
        ! $0 backup create depot $on; ! $0 backup prune depot --keep 1; ! $0 serve --memcached none --backup-to depot $on; \
        $0 backup list depot; $0 backup verify depot; $0 backup restore depot --into restored; $0 get key --data restored; \
        mount -o remount,rw depot; $0 backup create depot $on; $0 backup verify depot";
    let Some(output) = in_namespace(&scratch, script) else { return };
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(told.matches("Read-only file system").count(), 3, "{told}");
    let printed = succeeded(output);
    assert!(printed.contains("value") && printed.contains("backup 2 has "), "{printed}{told}");
    assert!(printed.ends_with(char::is_whitespace) && printed.contains("2 backups are whole"), "{printed}");
}

/// Begins a backup, and moves its folder away before its packs are there; what the command told.
fn lose_folder(scratch: &Scratch) -> String {
    for _ in 0..20 {
        let mut creating = scratch.on("data", &["backup", "create", "depot"]);
        let mut child = creating.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        while !scratch.is_there("depot/store") && child.try_wait().unwrap().is_none() {}
        send_signal("-STOP", child.id());
        let is_early = scratch.objects("depot/backups").is_empty();
        if is_early {
            fs::rename(scratch.join("depot"), scratch.join("away")).unwrap();
        }
        send_signal("-CONT", child.id());
        let output = child.wait_with_output().unwrap();
        if is_early {
            return failed(output);
        }
        fs::remove_dir_all(scratch.join("depot")).unwrap();
    }
    panic!("the backup was always made too soon");
}

#[test]
fn a_place_that_goes_away_while_a_backup_is_made_is_named_and_has_no_backup() {
    let scratch = Scratch::new("goes");
    scratch.loads("data", "default", &large_items(40));
    let told = lose_folder(&scratch);
    assert!(told.starts_with("error: cannot ") && told.contains("/depot: No such file or directory"), "{told}");
    assert!(!scratch.is_there("depot"), "the folder is not made anew");
    assert_eq!(scratch.dumped("data", "default").len(), 40);
    assert!(scratch.fails(&["list", "away"]).contains("away has no backups"));
    fs::remove_dir_all(scratch.join("away/lease")).unwrap();
    assert!(scratch.succeeds_on("data", &["backup", "create", "away"]).starts_with("backup 1 "));
    assert!(scratch.succeeds(&["verify", "away"]).starts_with("1 backup is whole"));
    scratch.restores("away", 1, "restored");
}
