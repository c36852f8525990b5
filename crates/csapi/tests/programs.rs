//! C programs over the library, compiled by the system's compiler: on a partition of a drive that serves here, and on a file.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use tapetum_drive::serving::{Serving, ServingOptions};
use tapetum_drive::{AttachedFlash, Attaching, Env, Event, Flash, MemoryFlash};

const MIB: u64 = 1 << 20;
const DEVICE_BYTES: u64 = 4 * MIB;

/// A folder of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("tapetum-cs-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Where cargo has put the library: beside this test.
fn library_folder() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    assert!(folder.join("libtapetum_cs.so").exists(), "{} has no library", folder.display());
    folder
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn compile(folder: &Folder, program: &str) -> PathBuf {
    let (built, library) = (folder.path(program), library_folder());
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-I"]).arg(crate_folder().join("include"));
    cc.arg(crate_folder().join("tests").join(program).with_extension("c")).arg("-o").arg(&built);
    cc.arg("-L").arg(&library).arg("-ltapetum_cs").arg(format!("-Wl,-rpath,{}", library.display()));
    succeed(&mut cc);
    built
}

/// Both programs on one device.
fn run_programs(folder: &Folder, device: &Path) {
    for program in ["drive", "misuse"] {
        let built = compile(folder, program);
        let said = succeed(Command::new(built).arg(device).arg(DEVICE_BYTES.to_string()));
        assert!(said.starts_with("all "), "{said}");
    }
}

/// Runs `work` beside a drive that serves at the path, until it is told to stop.
fn beside_a_drive(socket: &Path, work: impl FnOnce(&Event)) {
    let flash: Arc<dyn Flash> = Arc::new(MemoryFlash::new(64 * MIB));
    // Less than the library asks for first.
    let options = ServingOptions::new(socket.to_path_buf(), 48 * MIB);
    let serving = Serving::start(vec![flash], &options, &Env::system()).unwrap();
    let stop = Arc::new(Event::new().unwrap());
    let stopped = stop.clone();
    let thread = Env::system().spawn("drive", move || serving.run(stopped.as_fd()).unwrap()).unwrap();
    let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&stop)));
    stop.raise();
    thread.join().unwrap();
    worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[test]
fn a_partition_of_a_drive_in_another_process() {
    let folder = Folder::new("partition");
    let socket = folder.path("drive.sock");
    beside_a_drive(&socket, |_| run_programs(&folder, &socket.join("papers")));
}

#[test]
fn a_file_in_the_programs_own_process() {
    let folder = Folder::new("file");
    run_programs(&folder, &folder.path("flash"));
}

#[test]
fn flash_of_a_store_is_only_read() {
    let folder = Folder::new("store");
    let socket = folder.path("drive.sock");
    beside_a_drive(&socket, |_| {
        let attaching = Attaching { create_bytes: Some(DEVICE_BYTES), take_over: false };
        let attached = AttachedFlash::attach(&socket, "store", attaching, &Env::system()).unwrap();
        attached.say_made().unwrap();
        drop(attached);
        let built = compile(&folder, "store");
        assert!(succeed(Command::new(built).arg(socket.join("store"))).starts_with("it is only read"));
    });
}

#[test]
fn a_drive_that_ends_is_no_longer_available() {
    let folder = Folder::new("gone");
    let socket = folder.path("drive.sock");
    beside_a_drive(&socket, |stop| {
        let built = compile(&folder, "gone");
        let mut program = Command::new(built);
        program.arg(socket.join("a")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = program.spawn().unwrap();
        let mut said = BufReader::new(program.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "ready");
        stop.raise();
        while socket.exists() {
            Env::system().rest();
        }
        program.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "it is gone");
        assert!(program.wait().unwrap().success());
    });
}

#[test]
fn a_cpp_program_may_include_the_header() {
    let mut cc = Command::new("cc");
    cc.args(["-x", "c++", "-std=c++11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]);
    succeed(cc.arg(crate_folder().join("include/tapetum_cs.h")));
}
