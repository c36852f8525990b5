//! The disk's own latency for a writer while a figure runs on it: a loop of small durable writes past all caches, like those of the commit
//! log. A wait of the store is compared with the longest of these.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Failure;

const WRITE_BYTES: usize = 16 << 10;
/// Between two writes, so that the loop measures the disk without loading it.
const PAUSE: Duration = Duration::from_millis(1);

/// Writes in a file of so many bytes until `done`. Returns the longest time of one write.
pub fn longest_write(folder: &Path, file_bytes: u64, done: &AtomicBool) -> Result<Duration, Failure> {
    let path = folder.join("raw-loop");
    // Allocate blocks first, so that the loop's own writes change no metadata.
    let zeros = vec![0; 1 << 20];
    let file = File::create(&path)?;
    for offset in (0..file_bytes).step_by(zeros.len()) {
        file.write_all_at(&zeros, offset)?;
    }
    file.sync_all()?;
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT | libc::O_DSYNC).open(&path)?;
    let mut memory = vec![0x5a; WRITE_BYTES + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let bytes = &mut memory[start..start + WRITE_BYTES];
    let mut longest = Duration::ZERO;
    for offset in (0..file_bytes).step_by(WRITE_BYTES).cycle() {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let begun = Instant::now();
        file.write_all_at(bytes, offset)?;
        longest = longest.max(begun.elapsed());
        std::thread::sleep(PAUSE);
    }
    std::fs::remove_file(&path)?;
    Ok(longest)
}
