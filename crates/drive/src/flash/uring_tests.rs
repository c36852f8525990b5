//! Tests of the ring's queue that look inside it.

use super::*;
use crate::env::Env;
use crate::flash::file::{FileFlash, IoEngine};
use crate::flash::test_path::TestPath;

/// `None` if the kernel refuses io_uring; other tests cover the blocking engine.
fn queue(depth: u32) -> Option<(UringQueue, TestPath)> {
    let (data, path) = data()?;
    let local = PairMemory::from(LocalMemory::new(1 << 20).unwrap());
    let mut queue = UringQueue::new(data, &local, depth).unwrap();
    queue.sector_mask = 4095;
    Some((queue, path))
}

fn data() -> Option<(Arc<DataFile>, TestPath)> {
    probe().ok()?;
    let path = TestPath::new();
    let flash = FileFlash::create(&path, 1 << 20, IoEngine::Uring, &Env::system()).unwrap();
    Some((flash.data().clone(), path))
}

fn write(place: u64) -> Operation {
    Operation::Write { flash: place * 4096, from: MemoryAddress::local(place * 4096), length: 4096, fua: false }
}

fn finish(queue: &mut UringQueue, count: usize) -> Vec<Completion> {
    let mut completions = Vec::new();
    while completions.len() < count {
        queue.wait(None);
        queue.poll(&mut completions);
    }
    completions
}

fn submit(queue: &mut UringQueue, tag: u64, operation: Operation) {
    // SAFETY: inside flash and local memory; no test here touches a buffer while a command names it.
    unsafe { queue.submit(&Command::new(tag, operation)) };
}

#[test]
fn many_submissions_share_a_system_call_and_an_idle_poll_makes_none() {
    let Some((mut queue, _path)) = queue(64) else { return };
    for tag in 0..64 {
        submit(&mut queue, tag, write(tag));
    }
    assert_eq!(queue.enters, 0);
    let mut completions = Vec::new();
    queue.poll(&mut completions);
    assert_eq!((queue.enters, queue.unentered), (1, 0));
    queue.poll(&mut completions);
    assert_eq!(queue.enters, 1);
    let left = 64 - completions.len();
    finish(&mut queue, left);
    let enters = queue.enters;
    queue.poll(&mut completions);
    queue.wait(None);
    assert_eq!(queue.enters, enters);
}

#[test]
fn a_queue_of_one_thread_belongs_to_the_first_that_uses_it() {
    fn write_once(queue: &mut UringQueue) -> Vec<Completion> {
        submit(queue, 3, write(0));
        finish(queue, 1)
    }
    let Some((data, _path)) = data() else { return };
    let local = PairMemory::from(LocalMemory::new(1 << 20).unwrap());
    let mut queue = UringQueue::of_one_thread(data, &local, 8).unwrap();
    if !queue.disabled {
        return; // The kernel has no such rings.
    }
    let (lend, lent) = std::sync::mpsc::channel();
    let (give_back, given_back) = std::sync::mpsc::channel::<UringQueue>();
    let first = move || {
        let completions = write_once(&mut queue);
        lend.send((queue, completions)).unwrap();
        // Only here does it wait for the commands that it has.
        drop(given_back.recv());
    };
    let first = Env::system().spawn("first", first).unwrap();
    let (mut queue, completions) = lent.recv().unwrap();
    assert_eq!(completions, [Completion::success(3)]);
    let second = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| write_once(&mut queue)));
    assert!(second.is_err());
    give_back.send(queue).unwrap();
    first.join().unwrap();
}

#[test]
fn memory_moves_without_being_registered() {
    let Some((mut queue, path)) = queue(4) else { return };
    queue.fixed = false;
    let mut buffer = queue.memory.local.allocate(4096).unwrap();
    buffer.bytes_mut().fill(6);
    submit(&mut queue, 1, write(0));
    assert_eq!(finish(&mut queue, 1), [Completion::success(1)]);
    assert_eq!(std::fs::read(&*path).unwrap()[..4096], *buffer.bytes());
    buffer.bytes_mut().fill(0);
    submit(&mut queue, 2, Operation::Read { flash: 0, local: 0, length: 4096 });
    assert_eq!(finish(&mut queue, 1), [Completion::success(2)]);
    assert!(buffer.bytes().iter().all(|&byte| byte == 6));
}

#[test]
fn a_flush_waits_for_the_writes_before_it_and_for_no_others() {
    let Some((mut queue, _path)) = queue(2) else { return };
    for tag in 0..4 {
        submit(&mut queue, tag, write(tag));
    }
    submit(&mut queue, 10, Operation::Flush);
    for tag in 4..8 {
        submit(&mut queue, tag, write(tag));
    }
    submit(&mut queue, 11, Operation::Flush);
    let tags: Vec<_> = finish(&mut queue, 10).iter().map(|completion| completion.tag).collect();
    let place = |tag| tags.iter().position(|&other| other == tag).unwrap();
    assert!((0..4).all(|tag| place(tag) < place(10)) && (0..8).all(|tag| place(tag) < place(11)));
}

#[test]
fn a_short_transfer_goes_on_and_one_that_gets_nowhere_fails() {
    let Some((mut queue, _path)) = queue(4) else { return };
    submit(&mut queue, 5, write(0));
    // The kernel's answer, simulated.
    let number = 0;
    queue.transfers[number].length = 8192;
    queue.finish(number as u32, 5000);
    let rest = queue.transfers[number];
    assert_eq!((rest.flash, rest.memory.offset, rest.length, queue.backlog.len()), (4096, 4096, 4096, 1));
    queue.backlog.clear();
    queue.finish(number as u32, 100);
    assert_eq!(queue.done, [Completion::failed(5, libc::EIO)]);
}

#[test]
fn a_transfer_that_is_put_off_for_ever_fails_with_what_the_kernel_says() {
    let Some((mut queue, _path)) = queue(4) else { return };
    for (tag, errno) in [(5, libc::EAGAIN), (6, libc::EINTR)] {
        submit(&mut queue, tag, write(0));
        queue.finish(0, -errno);
        queue.transfers[0].length = 8192;
        for put_off in 1..RETRIES_MAX {
            assert_eq!((queue.transfers[0].retries, queue.backlog.len()), (put_off, 1));
            queue.backlog.clear();
            queue.finish(0, -errno);
        }
        queue.backlog.clear();
        // Progress resets the count.
        queue.finish(0, 4096);
        assert_eq!((queue.transfers[0].retries, queue.backlog.len()), (0, 1));
        for _ in 0..RETRIES_MAX {
            queue.backlog.clear();
            queue.finish(0, -errno);
        }
        queue.backlog.clear();
        assert!(queue.done.is_empty());
        queue.finish(0, -errno);
        assert_eq!(std::mem::take(&mut queue.done), [Completion::failed(tag, errno)]);
    }
}

#[test]
fn reading_past_the_end_of_a_shrunken_file_fails() {
    let Some((mut queue, path)) = queue(4) else { return };
    std::fs::OpenOptions::new().write(true).open(&*path).unwrap().set_len(4096).unwrap();
    submit(&mut queue, 1, Operation::Read { flash: 8192, local: 0, length: 4096 });
    assert_eq!(finish(&mut queue, 1), [Completion::failed(1, libc::EIO)]);
}
