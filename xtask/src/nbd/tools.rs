//! The tools that people have: data that they copied in come out again, and their checks pass.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{DISK, DISK_BYTES, Disk, FROZEN, said};
use crate::Failure;
use tapetum_bench::random::Random;

pub fn run(disk: &Disk, scratch: &Path) -> Result<(), Failure> {
    let server = disk.start()?;
    let list = said(Command::new("nbdinfo").args(["--list", "--json", &disk.uri("")]))?;
    for (name, read_only) in [(DISK, "false"), (FROZEN, "true")] {
        let exports: serde_json::Value = serde_json::from_str(&list)?;
        let exports = exports["exports"].as_array().cloned().unwrap_or_default();
        let found = exports.iter().find(|export| export["export-name"] == name);
        let found = found.ok_or_else(|| format!("nbdinfo does not see {name}: {list}"))?;
        let shown = (found["is_read_only"].to_string(), found["can_multi_conn"].to_string());
        if shown != (read_only.to_owned(), "true".to_owned()) {
            return Err(format!("nbdinfo shows {found}").into());
        }
    }
    let (image, copy) = (scratch.join("image"), scratch.join("copy"));
    fs::write(&image, image_bytes())?;
    said(Command::new("nbdcopy").arg(&image).arg(disk.uri(DISK)))?;
    said(Command::new("nbdcopy").arg(disk.uri(DISK)).arg(&copy))?;
    if fs::read(&image)? != fs::read(&copy)? {
        return Err("what nbdcopy copied out is not what it copied in".into());
    }
    holes_are_told(disk)?;
    qemu(disk, &image, &copy)?;
    println!("test-nbd: nbdinfo, nbdcopy, qemu-img and qemu-io");
    match Command::new("fio").arg("--version").output() {
        Ok(_) => fio(disk, scratch)?,
        Err(_) => println!("test-nbd: LEFT OUT, fio with verify: apt-get install fio"),
    }
    server.terminate()?;
    Ok(())
}

/// Data of all kinds: without a pattern, of one, and holes.
fn image_bytes() -> Vec<u8> {
    let mut bytes = vec![0; DISK_BYTES as usize];
    let mut random = Random::new(7);
    for at in (0..bytes.len()).step_by(1 << 20) {
        let piece = &mut bytes[at..at + (1 << 20)];
        match random.below(4) {
            0 => {}
            1 => piece.fill(at.to_be_bytes()[5]),
            2 => random.fill(piece),
            _ => random.fill(&mut piece[5000..500_000]),
        }
    }
    bytes
}

/// The mebibytes of zeros were not written, or are gone: nbdcopy says which they are.
fn holes_are_told(disk: &Disk) -> Result<(), Failure> {
    let map = said(Command::new("nbdinfo").args(["--map=base:allocation", "--totals", &disk.uri(DISK)]))?;
    let is_hole = |line: &&str| line.contains("hole,zero");
    let share = map
        .lines()
        .find(is_hole)
        .and_then(|line| line.split_whitespace().nth(1)?.trim_end_matches('%').parse::<f64>().ok());
    match share {
        Some(10.0..70.0) => Ok(()),
        _ => Err(format!("of a disk with holes nbdinfo says:\n{map}").into()),
    }
}

/// fio writes at random, in pieces of many sizes, and reads back what it wrote.
fn fio(disk: &Disk, scratch: &Path) -> Result<(), Failure> {
    let uri = format!("--uri={}", disk.uri(DISK));
    let words =
        ["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--bsrange=512-128k", "--bs_unaligned", "--iodepth=16"];
    let check =
        ["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--serialize_overlap=1", "--output-format=terse"];
    let size = format!("--size={DISK_BYTES}");
    // It keeps a file of its state where it runs.
    said(Command::new("fio").current_dir(scratch).args(words).args(check).args([&uri, &size]))?;
    println!("test-nbd: fio with verify");
    Ok(())
}

fn qemu(disk: &Disk, image: &Path, copy: &Path) -> Result<(), Failure> {
    let uri = disk.uri(DISK);
    let same = |what: &str| -> Result<(), Failure> {
        let compare = said(Command::new("qemu-img").args(["compare", "-f", "raw", "-F", "raw"]).arg(image).arg(&uri))?;
        if compare.contains("identical") { Ok(()) } else { Err(format!("{what}: {compare}").into()) }
    };
    same("nbdcopy's image")?;
    said(Command::new("qemu-img").args(["convert", "-n", "-f", "raw", "-O", "raw"]).arg(copy).arg(&uri))?;
    same("the same by qemu-img")?;
    let script = [
        "write -P 0xab 0 64k",
        "write -P 0xcd 1000 3000",
        "write -f -P 0xef 100k 1M",
        "flush",
        "write -z -u 8k 16k",
        "write -z 40k 4k",
        "discard 200k 300k",
        "aio_write -P 0x11 2M 512k",
        "aio_write -P 0x22 3M 512k",
        "aio_flush",
        "read -P 0xab 4000 4k",
        "read -P 0xcd 1000 3000",
        "read -P 0 8k 16k",
        "read -P 0 40k 4k",
        "read -P 0 200k 300k",
        "read -P 0xef 500k 500k",
        "read -P 0x11 2M 512k",
        "read -P 0x22 3M 512k",
        "map",
    ];
    let mut qemu_io = Command::new("qemu-io");
    qemu_io.args(["-f", "raw"]);
    for line in script {
        qemu_io.args(["-c", line]);
    }
    let text = said(qemu_io.arg(&uri))?;
    if text.contains("fail") || text.contains("error") {
        return Err(format!("qemu-io is not content:\n{text}").into());
    }
    Ok(())
}
