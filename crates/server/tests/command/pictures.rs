//! Pictures that are imported, and imports that fail.

use std::fs;
use std::process::Output;

use crate::outside::{Folder, failed, succeeded, tapetum};

fn import(scratch: &Folder, folder: &str, more: &[&str]) -> Output {
    let mut command = tapetum(&["import", "images"]);
    command.arg(scratch.join(folder)).args(["--memory", "32MiB", "--data"]).arg(scratch.join("data"));
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
    assert!(told.contains("the keyspace images, which was made for this, was dropped again"), "{told}");
    assert_eq!(keyspaces(&scratch), "default\thashed\t0\n");
    // A keyspace that existed before stays.
    let told = failed(import(&scratch, "empty", &["--keyspace", "default"]));
    assert!(told.contains("there are no .jpg or .jpeg files") && !told.contains("dropped"), "{told}");
    // The content of such a file is checked only when it is decoded.
    fs::create_dir_all(scratch.join("pictures/class")).unwrap();
    fs::write(scratch.join("pictures/class/one.jpg"), b"\xff\xd8\xff\xd9").unwrap();
    let told = succeeded(import(&scratch, "pictures", &[]));
    assert_eq!(told, "imported 1 pictures of 1 classes, 4 bytes, into the keyspace images\n");
    failed(import(&scratch, "empty", &[]));
    assert!(keyspaces(&scratch).contains("images\thashed"));
}
