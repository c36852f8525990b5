//! A member: a loop device over a file, past the page cache. The kernel limits its requests and bytes per second.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::arguments::Arguments;
use crate::loop_device::LoopDevice;

/// The kernel's throttle, in control groups of version 1. Limits of the root group hold for all processes, and for writes back from the
/// page cache.
const THROTTLE: &str = "/sys/fs/cgroup/blkio";

/// Enough to check that loop devices work.
const CHECKED_BYTES: u64 = 1 << 20;

/// Limits of a member per second.
#[derive(Clone, Copy)]
pub struct Limits {
    pub reads_per_second: u64,
    pub writes_per_second: u64,
    pub read_bytes_per_second: u64,
    pub write_bytes_per_second: u64,
}

impl Limits {
    /// The limits of `--throttle`, `--reads`, `--writes`, `--read-bytes` and `--write-bytes`. `None`: no limits.
    pub fn parse(arguments: &Arguments) -> Result<Option<Limits>, Failure> {
        match arguments.text("throttle").unwrap_or("yes") {
            "yes" => Ok(Some(Limits {
                reads_per_second: arguments.number("reads", 20_000)?,
                writes_per_second: arguments.number("writes", 2_000)?,
                read_bytes_per_second: arguments.size("read-bytes", 500 << 20)?,
                write_bytes_per_second: arguments.size("write-bytes", 250 << 20)?,
            })),
            "no" => Ok(None),
            other => Err(format!("--throttle takes yes or no, not {other}").into()),
        }
    }

    fn files(&self) -> [(&'static str, u64); 4] {
        [
            ("blkio.throttle.read_iops_device", self.reads_per_second),
            ("blkio.throttle.write_iops_device", self.writes_per_second),
            ("blkio.throttle.read_bps_device", self.read_bytes_per_second),
            ("blkio.throttle.write_bps_device", self.write_bytes_per_second),
        ]
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "held to {} reads and {} writes a second, {} and {} MiB",
            self.reads_per_second,
            self.writes_per_second,
            self.read_bytes_per_second >> 20,
            self.write_bytes_per_second >> 20
        )
    }
}

pub struct Member {
    device: LoopDevice,
    /// Its major and minor number, in the kernel's notation.
    number: String,
    file: PathBuf,
}

/// The limits of a member, which end when this is dropped.
pub struct Throttled {
    number: String,
}

impl Member {
    /// Checks that a member can be made in this folder.
    pub fn check(folder: &Path) -> Result<(), Failure> {
        match Path::new(THROTTLE).join("blkio.throttle.read_iops_device").exists() {
            true => Member::new(folder, "checked", CHECKED_BYTES).map(drop),
            false => Err(format!("the kernel has no {THROTTLE}: it takes control groups of version 1").into()),
        }
    }

    pub fn new(folder: &Path, name: &str, bytes: u64) -> Result<Member, Failure> {
        let file = folder.join(name.replace(' ', "-")).with_extension("member");
        File::create(&file)?.set_len(bytes)?;
        let device = LoopDevice::over(&file).and_then(LoopDevice::direct);
        let device = device.map_err(|why| format!("there can be no loop device, which takes root ({why})"))?;
        let number = fs::read_to_string(sys(&device).join("dev"))?.trim().to_owned();
        Ok(Member { device, number, file })
    }

    pub fn device(&self) -> &Path {
        &self.device.path
    }

    /// Limits it to `limits`, if there are any.
    pub fn throttle(&self, limits: Option<Limits>) -> Result<Throttled, Failure> {
        for (file, limit) in limits.iter().flat_map(Limits::files) {
            fs::write(Path::new(THROTTLE).join(file), format!("{} {limit}", self.number))?;
        }
        Ok(Throttled { number: self.number.clone() })
    }

    pub fn written_bytes(&self) -> Result<u64, Failure> {
        let stat = fs::read_to_string(sys(&self.device).join("stat"))?;
        let sectors = stat.split_whitespace().nth(6).and_then(|word| word.parse::<u64>().ok());
        Ok(sectors.ok_or("a block device's account has no sectors written")? * 512)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // The bytes are freed with the loop device.
        let _ = fs::remove_file(&self.file);
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        let none =
            Limits { reads_per_second: 0, writes_per_second: 0, read_bytes_per_second: 0, write_bytes_per_second: 0 };
        for (file, limit) in none.files() {
            if let Err(error) = fs::write(Path::new(THROTTLE).join(file), format!("{} {limit}", self.number)) {
                eprintln!("the limit of device {} in {file} stays: {error}", self.number);
            }
        }
    }
}

fn sys(device: &LoopDevice) -> PathBuf {
    Path::new("/sys/class/block").join(device.path.file_name().unwrap_or_default())
}
