//! The paths of the workspace: the checkout, the single target folder, the binaries in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// An empty folder for this run, on the disk of the target folder. Data directories must not be in a memory file system, or the figures
/// would measure that.
pub fn scratch(name: &str) -> Result<PathBuf, Failure> {
    let folder = target().join("scratch").join(format!("{name}-{}", std::process::id()));
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Runs `work` in such a folder. The folder is removed after success. After a failure it is kept, and the failure names it.
pub fn keeping<T>(name: &str, work: impl FnOnce(&Path) -> Result<T, Failure>) -> Result<T, Failure> {
    let folder = scratch(name)?;
    match work(&folder) {
        Ok(done) => {
            std::fs::remove_dir_all(folder)?;
            Ok(done)
        }
        Err(failure) => {
            let folder = folder.display();
            Err(format!("{failure}\nits data and logs are kept in {folder}: remove that once you have seen enough")
                .into())
        }
    }
}

/// A scratch folder that is removed when dropped, or by the next run if its process was killed.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Result<Scratch, Failure> {
        remove_left_behind(&target().join("scratch/passing"))?;
        scratch(&format!("passing/{name}")).map(Scratch)
    }

    pub fn folder(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} stays behind: {error}", self.0.display());
        }
    }
}

/// Removes the folders in this one whose processes are gone.
fn remove_left_behind(passing: &Path) -> Result<(), Failure> {
    let Ok(folders) = std::fs::read_dir(passing) else { return Ok(()) };
    for folder in folders {
        let folder = folder?;
        let name = folder.file_name();
        let process = name.to_str().and_then(|name| name.rsplit_once('-')?.1.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            match std::fs::remove_dir_all(folder.path()) {
                // Its process, or another one that found it, was faster.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
    }
    Ok(())
}

/// Like [`scratch`], but in memory if a file system there has the room: for tests that do not depend on a disk's speed.
pub fn scratch_in_memory(name: &str, needed_bytes: u64) -> Result<PathBuf, Failure> {
    // SAFETY: all zeros is a valid value of this struct of numbers.
    let mut system: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero byte, and the struct is live and writable.
    let is_there = unsafe { libc::statvfs(c"/dev/shm".as_ptr(), &mut system) } == 0;
    let folder = Path::new("/dev/shm").join(format!("tapetum-{name}-{}", std::process::id()));
    if is_there && system.f_bavail * system.f_frsize >= needed_bytes && std::fs::create_dir(&folder).is_ok() {
        return Ok(folder);
    }
    scratch(name)
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Optimised, with asserts: for tests.
    Test,
    /// The build for users and for figures.
    Release,
}

/// Runs a command to its end. `why` is the failure if it does not succeed.
pub fn succeed(command: &mut Command, why: impl Into<Failure>) -> Result<(), Failure> {
    if command.status()?.success() { Ok(()) } else { Err(why.into()) }
}

/// The cargo that runs this, in the checkout.
pub fn cargo(words: &[&str]) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(root()).args(words);
    cargo
}

/// Runs `cargo x COMMAND WORDS` once more, in its release build.
pub fn again_in_release(command: &[&str], words: &[String]) -> Result<(), Failure> {
    let run = ["run", "--quiet", "--release", "--locked", "--package", "xtask", "--"];
    let why = format!("{} failed; its message is above", command.join(" "));
    succeed(cargo(&run).args(command).args(words), why)
}

/// Builds all binaries of the workspace for tests. Returns their folder.
pub fn build_all() -> Result<PathBuf, Failure> {
    let mut cargo = cargo(&["build", "--quiet", "--locked", "--workspace", "--bins"]);
    succeed(&mut cargo, "the binaries do not build; cargo's message is above")?;
    Ok(target().join("debug"))
}

/// Builds the native half of the Python package for tests, together with everything else, so that both have the same features. Returns its
/// path.
pub fn build_python_library() -> Result<PathBuf, Failure> {
    let mut cargo = cargo(&["build", "--quiet", "--locked", "--workspace"]);
    succeed(&mut cargo, "the Python package does not build; cargo's message is above")?;
    Ok(target().join("debug/lib_tapetum.so"))
}

/// Builds `tapetum`. Returns its path.
pub fn build_server(profile: Profile) -> Result<PathBuf, Failure> {
    build_server_with(profile, &[])
}

/// With features beside the default ones.
pub fn build_server_with(profile: Profile, features: &[&str]) -> Result<PathBuf, Failure> {
    let mut cargo = cargo(&["build", "--quiet", "--locked", "--package", "tapetum-server"]);
    cargo.args(["--features", &features.join(",")]);
    let folder = match profile {
        Profile::Test => "debug",
        Profile::Release => {
            cargo.arg("--release");
            "release"
        }
    };
    succeed(&mut cargo, "tapetum does not build; cargo's message is above")?;
    Ok(target().join(folder).join("tapetum"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_if_all_is_well_and_stays_with_a_word_if_not() {
        let done = keeping("keeping", |folder| {
            std::fs::write(folder.join("data"), "")?;
            Ok(folder.to_owned())
        });
        assert!(!done.unwrap().exists());
        let mut kept = PathBuf::new();
        let failed = keeping("keeping", |folder| {
            kept = folder.to_owned();
            std::fs::write(folder.join("data"), "")?;
            Err::<(), _>("why".into())
        });
        let told = failed.unwrap_err().to_string();
        assert!(told.starts_with("why\n") && told.contains(&*kept.to_string_lossy()), "{told}");
        assert!(kept.join("data").exists());
        std::fs::remove_dir_all(kept).unwrap();
    }

    #[test]
    fn what_a_killed_run_left_behind_goes_and_what_is_used_stays() {
        let scratch = Scratch::new("left-behind").unwrap();
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let names = [format!("bench-x-{}", gone.id()), format!("bench-x-{}", std::process::id()), "mine".to_owned()];
        let folders = names.map(|name| scratch.folder().join(name));
        folders.iter().for_each(|folder| std::fs::create_dir_all(folder.join("data")).unwrap());
        remove_left_behind(scratch.folder()).unwrap();
        assert_eq!(folders.each_ref().map(|folder| folder.exists()), [false, true, true]);
        remove_left_behind(&scratch.folder().join("absent")).unwrap();
        for _ in 0..50 {
            std::fs::create_dir_all(folders[0].join("data")).unwrap();
            std::thread::scope(|scope| {
                let remove = || remove_left_behind(scratch.folder()).map_err(|error| error.to_string());
                let both = [scope.spawn(remove), scope.spawn(remove)];
                both.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
            });
            assert!(!folders[0].exists());
        }
    }
}
