//! Pictures that are imported, and imports that fail.

use std::fs;
use std::process::Output;

use tapetum::images::JpegQuality;
use tapetum_kernels::images::testing;

use crate::outside::{Folder, Served, failed, succeeded, tapetum};

fn import(scratch: &Folder, folder: &str, more: &[&str]) -> Output {
    let mut command = tapetum(&["import", "images"]);
    command.arg(scratch.join(folder)).args(["--memory", "64MiB", "--data"]).arg(scratch.join("data"));
    command.args(more).output().unwrap()
}

fn keyspaces(scratch: &Folder) -> String {
    succeeded(tapetum(&["keyspace", "list", "--data"]).arg(scratch.join("data")).output().unwrap())
}

#[test]
fn an_import_that_fails_before_its_first_picture_leaves_no_keyspace() {
    let scratch = Folder::new("pictures-nothing");
    let create = ["--capacity", "64MiB"];
    assert!(failed(import(&scratch, "absent", &create)).contains("absent: No such file"));
    assert!(!scratch.join("data").exists());
    fs::create_dir(scratch.join("empty")).unwrap();
    let told = failed(import(&scratch, "empty", &create));
    assert!(told.contains("there are no .jpg, .jpeg, .png or .webp files"), "{told}");
    assert!(!scratch.join("data").exists());
    // The content of such a file is checked only when it is decoded.
    fs::create_dir_all(scratch.join("pictures/class")).unwrap();
    fs::write(scratch.join("pictures/class/one.jpg"), b"\xff\xd8\xff\xd9").unwrap();
    let told = succeeded(import(&scratch, "pictures", &create));
    assert_eq!(told, "imported 1 pictures of 1 classes, 4 bytes, into the keyspace images\n");
    failed(import(&scratch, "empty", &[]));
    assert!(keyspaces(&scratch).contains("images\thashed"));
}

/// Runs the commands, with pictures in a keyspace of this kind; gives what they say, and the files that they wrote.
fn import_and_run(scratch: &Folder, index: &str) -> (Vec<String>, Vec<Vec<u8>>) {
    let mut create = tapetum(&["keyspace", "create", "images", "--index", index, "--memory", "64MiB"]);
    succeeded(create.args(["--capacity", "64MiB", "--data"]).arg(scratch.join("data")).output().unwrap());
    let run = |pipeline: &str, more: &[&str]| {
        let mut command = tapetum(&["pipeline", "run", pipeline, "--keyspace", "images"]);
        command.arg("--out").arg(scratch.join("out")).arg("--data").arg(scratch.join("data"));
        command.args(more).output().unwrap()
    };
    let told = [
        succeeded(import(scratch, "pictures", &["--capacity", "64MiB"])),
        succeeded(run("jpeg_decode | resize 24", &["--keys", "cats/,dogs/"])),
        failed(run("jpeg_decode | resize 24", &["--keys", "birds/"])),
        failed(run("jpeg_decode | batch 4", &["--keys", "cats/"])),
        failed(run("jpeg_decode | resize 24", &["--keys", "bad/"])),
        failed(run("jpeg_decode", &["--keys", "cats/", "--application", "training"])),
    ];
    let place = scratch.join("").display().to_string();
    let files = ["cats_one.jpg", "dogs_two.jpg"].map(|name| fs::read(scratch.join("out").join(name)).unwrap());
    (told.iter().map(|told| told.replace(&place, "")).collect(), files.to_vec())
}

#[test]
fn pictures_are_imported_and_run_through_programs_closed_and_served() {
    let of_hashed = pictures_closed_and_served("hashed");
    assert!(of_hashed.0[4].contains("1 pictures failed"), "{:?}", of_hashed.0);
    assert_eq!(pictures_closed_and_served("ordered"), of_hashed);
}

fn pictures_closed_and_served(index: &str) -> (Vec<String>, Vec<Vec<u8>>) {
    let scratch = ["closed", "served"].map(|name| Folder::new(&format!("pictures-{index}-{name}")));
    for scratch in &scratch {
        let of_size = |side| testing::jpeg(side, side, JpegQuality::default());
        for (name, file) in
            [("cats/one.jpg", of_size(40)), ("dogs/two.jpg", of_size(64)), ("bad/no.jpg", b"no picture".to_vec())]
        {
            let path = scratch.join("pictures").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
    }
    let [closed, served] = &scratch;
    let mut serve = tapetum(&["serve", "--threads", "1", "--memory", "64MiB", "--capacity", "64MiB", "--memcached"]);
    let server = Served::start(
        serve.arg(format!("unix:{}", served.join("socket").display())).arg("--data").arg(served.join("data")),
    );
    let of_served = import_and_run(served, index);
    server.stop();
    let of_closed = import_and_run(closed, index);
    assert_eq!(of_closed, of_served);
    of_closed
}
