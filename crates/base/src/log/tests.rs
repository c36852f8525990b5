//! When the log writes and flushes, on a drive in memory and by a clock of the test's own.

use super::*;
use crate::media::io::{Io, Task, poll_once};
use std::task::Poll;
use std::time::Duration;
use tapetum_drive::{
    Command, Completion, Drive, Env, FaultyFlash, Flash, FlashError, FlashQueue, HostRegion, LocalMemory, Opcode,
    PairMemory, programs,
};

const SEGMENT_BYTES: u64 = 64 << 10;

struct Bench {
    flash: FaultyFlash,
    drive: Drive,
    io: Io,
    log: Arc<Log>,
}

impl Bench {
    fn new(sync: Sync) -> Bench {
        let flash = FaultyFlash::new(8 << 20, 1);
        Bench::over(Arc::new(flash.clone()), flash, sync)
    }

    fn over(drive_flash: Arc<dyn Flash>, flash: FaultyFlash, sync: Sync) -> Bench {
        let local = LocalMemory::new(4 * SEGMENT_BYTES as usize).unwrap();
        let drive = Drive::new(drive_flash, local, programs::built_in(), Env::simulated(1).0);
        let geometry = Geometry::new(8 << 20, SEGMENT_BYTES, 2, 512).unwrap();
        let arenas = HostRegion::of_arenas(SEGMENT_BYTES as usize).unwrap();
        let start = Start {
            buffer: 0,
            oldest: 0,
            position: 0,
            stamp_next: 1,
            stamp_durable: 0,
            previous_crc: 0,
            crc_sealed: 0,
            generation: 1,
        };
        let queue = drive.queue_pair_with_host(arenas[0].region(), 64).unwrap();
        let log = Arc::new(Log::new(queue, arenas, geometry, 1, sync, start));
        let io = Io::new(drive.queue_pair(64).unwrap());
        Bench { flash, drive, io, log }
    }

    fn append(&self) {
        self.append_value(b"value").unwrap();
    }

    /// Its place.
    fn append_value(&self, stored: &[u8]) -> Result<u32, AppendError> {
        let (header, mut given) = (Header::value(0, b"key".len(), stored.len()), 0);
        self.log.append(&[Draft { header, key: b"key", stored }], |_, _, place| given = place).map(|()| given)
    }

    /// The record at a place of the first buffer.
    fn record(&self, place: u32) -> Record<'_> {
        // SAFETY: places come from `append_value`, and no test looks at a record when it has gone on by two buffers.
        unsafe { self.log.record(0, place) }
    }

    fn rotate(&self) {
        let oldest = lock(&self.log.state).buffers.oldest;
        if self.log.rotate().is_none() {
            // SAFETY: what is in it is written, and nobody looks at it any more.
            unsafe { self.log.release(oldest) };
            assert!(self.log.rotate().is_some());
        }
    }

    fn flush_elsewhere(&self) -> Task<Result<(), Error>> {
        let (log, io) = (self.log.clone(), self.io.clone());
        Box::pin(async move { log.flush_elsewhere(&io).await })
    }

    fn flushes(&self) -> u64 {
        self.drive.counters().opcode(Opcode::Flush).completed
    }

    /// The end of a flush that was begun.
    fn end(&self, mut flush: Task<Result<(), Error>>) -> Result<(), Error> {
        loop {
            self.io.pump();
            if let Some(ended) = poll_once(&mut flush) {
                return ended;
            }
        }
    }

    /// Writes what is there and waits for it.
    fn write_all(&self) {
        while self.log.has_pending() {
            self.log.advance(true, 0);
        }
    }

    fn advance_often(&self, now_us: u64) {
        (0..1000).for_each(|_| self.log.advance(false, now_us));
    }
}

#[test]
fn at_no_what_is_appended_is_written_when_a_second_is_over_and_not_flushed() {
    let bench = Bench::new(Sync::No);
    bench.append();
    bench.advance_often(SECOND_US - 1);
    assert_eq!(bench.log.log_write_bytes(), 0);
    bench.advance_often(SECOND_US);
    assert!(!bench.log.has_pending());
    assert_eq!((bench.log.log_write_bytes(), bench.flushes()), (512, 0));
    bench.append();
    bench.advance_often(2 * SECOND_US - 1);
    assert!(bench.log.has_pending(), "the next second has not ended");
}

#[test]
fn stamps_without_a_record_lie_between_those_of_a_group() {
    let bench = Bench::new(Sync::Always);
    bench.append();
    assert_eq!(bench.log.give_stamp(), 2);
    bench.append();
    bench.log.go_on_above(7);
    assert_eq!(bench.log.give_stamp(), 8);
    bench.write_all();
    assert_eq!(bench.log.durable_stamp(), 3, "of records alone");
    let geometry = Geometry::new(8 << 20, SEGMENT_BYTES, 2, 512).unwrap();
    let reader = replay::ZoneReader { geometry: &geometry, store_id: 1 };
    let zone = bench.flash.peek(geometry.zone_offset(0), SEGMENT_BYTES);
    let (mut chain, mut stamps) = (replay::Chain::new(0, 0), Vec::new());
    let end = reader.replay(&zone, 0, &mut chain, |_, record| stamps.push(record.header.stamp)).unwrap();
    assert_eq!((end.groups, stamps, chain.stamp_last), (1, vec![1, 3], 3));
    bench.append();
    bench.write_all();
    assert_eq!(bench.log.durable_stamp(), 9);
    let zone = bench.flash.peek(geometry.zone_offset(0), SEGMENT_BYTES);
    assert_eq!(reader.refuse_gap(&zone, 0, end.position, &chain), Ok(()), "what was durable before is there");
}

#[test]
fn a_flush_of_another_queue_has_its_turn() {
    let bench = Bench::new(Sync::EverySecond);
    assert_eq!(bench.log.begin_flush_elsewhere(), Poll::Ready(Ok(())));
    assert!(bench.log.begin_flush_elsewhere().is_pending());
    bench.append();
    bench.advance_often(SECOND_US);
    assert_eq!(bench.log.durable_stamp(), 0, "the log waits for its end");
    bench.log.end_flush_elsewhere(None);
    bench.advance_often(SECOND_US);
    assert_eq!(bench.log.durable_stamp(), 1);
    assert_eq!(bench.log.begin_flush_elsewhere(), Poll::Ready(Ok(())));
    bench.log.end_flush_elsewhere(Some(&Error::Io("for the test".into())));
    assert!(matches!(bench.log.begin_flush_elsewhere(), Poll::Ready(Err(_))));
}

#[test]
fn at_everysecond_what_is_appended_is_durable_when_a_second_is_over() {
    let bench = Bench::new(Sync::EverySecond);
    bench.append();
    bench.advance_often(SECOND_US);
    assert_eq!((bench.log.durable_stamp(), bench.flushes()), (1, 1));
}

#[test]
fn the_log_does_not_flush_while_another_queue_does() {
    let bench = Bench::new(Sync::EverySecond);
    let mut other = bench.flush_elsewhere();
    assert!(poll_once(&mut other).is_none());
    bench.append();
    bench.advance_often(SECOND_US);
    assert_eq!((bench.log.durable_stamp(), bench.flushes()), (0, 0));
    assert!(!bench.log.has_pending(), "who closes does not wait for what is not the log's");
    bench.end(other).unwrap();
    bench.advance_often(SECOND_US);
    assert_eq!((bench.log.durable_stamp(), bench.flushes()), (1, 2));
}

#[test]
fn after_a_failed_flush_no_other_is_believed_whoever_s_it_was() {
    let bench = Bench::new(Sync::EverySecond);
    bench.flash.fail_nth(Opcode::Flush, 1);
    let other = bench.flush_elsewhere();
    bench.append();
    assert!(bench.end(other).is_err());
    bench.advance_often(SECOND_US);
    assert_eq!(bench.log.durable_stamp(), 0);

    let bench = Bench::new(Sync::EverySecond);
    bench.flash.fail_nth(Opcode::Flush, 1);
    bench.append();
    while lock(&bench.log.state).flushing.is_none() {
        bench.log.advance(false, SECOND_US);
    }
    assert!(bench.end(bench.flush_elsewhere()).is_err());
    assert_eq!(bench.log.durable_stamp(), 0);
}

#[test]
fn the_largest_record_fits_an_empty_buffer_to_the_byte() {
    let bench = Bench::new(Sync::No);
    // Also beside as many planned deletions as there may be.
    bench.log.keep_for_planned(bench.log.planned_max());
    let bytes_of = |value: usize| Header::value(0, b"key".len(), value).record_bytes();
    let largest = (0..).take_while(|value| bytes_of(*value) <= bench.log.record_bytes_max()).last().unwrap();
    assert_eq!(bytes_of(largest), bench.log.record_bytes_max(), "records come in every size");
    assert_eq!(bench.append_value(&vec![7; largest + 1]), Err(AppendError::BufferFull));
    let place = bench.append_value(&vec![7; largest]).unwrap();
    assert_eq!(bench.record(place).stored, vec![7; largest]);
    assert_eq!(bench.append_value(b""), Err(AppendError::BufferFull));
}

#[test]
fn planned_marks_behind_a_full_buffer_are_there_to_read_each_in_a_group_of_its_own() {
    let bench = Bench::new(Sync::No);
    let planned = bench.log.planned_max();
    assert!(planned > 1);
    bench.log.keep_for_planned(planned);
    while bench.append_value(&[7; 500]).is_ok() {}
    while bench.append_value(b"").is_ok() {}
    for _ in 0..planned {
        let (header, mut place) = (Header::tombstone(0, b"mark".len()), 0);
        bench.log.append_planned(Draft { header, key: b"mark", stored: b"" }, |_, _, at| place = at).unwrap();
        assert_eq!(bench.record(place).key, b"mark");
        bench.log.seal(&mut lock(&bench.log.state));
    }
}

#[test]
fn a_group_without_hurry_gathers_wherever_it_begins() {
    let bench = Bench::new(Sync::No);
    bench.append_value(&[7; SEGMENT_BYTES as usize / 2]).unwrap();
    bench.write_all();
    let written = bench.log.log_write_bytes();
    bench.append_value(&[7; SEGMENT_BYTES as usize / 4]).unwrap();
    bench.advance_often(1);
    assert_eq!(bench.log.log_write_bytes(), written, "it is a quarter of what is worth a write");
}

#[test]
fn a_buffer_is_written_when_it_is_sealed_and_none_of_its_groups_is_left() {
    let bench = Bench::new(Sync::No);
    bench.append();
    bench.write_all();
    assert!(!bench.log.buffer_written(0), "it is active");
    bench.append();
    bench.rotate();
    assert!(!bench.log.buffer_written(0), "a group of it waits");
    bench.write_all();
    assert!(bench.log.buffer_written(0) && !bench.log.buffer_written(1));
    bench.append();
    bench.rotate();
    assert!(bench.log.buffer_written(0) && !bench.log.buffer_written(1), "what waits is of the next one");
}

#[test]
fn something_is_pending_from_an_append_to_the_end_of_its_write() {
    let bench = Bench::new(Sync::No);
    bench.flash.stall_nth_write(1, 100);
    bench.append();
    assert!(bench.log.has_pending(), "it is open");
    bench.rotate();
    assert!(bench.log.has_pending(), "it is sealed");
    bench.log.advance(true, 0);
    let state = lock(&bench.log.state);
    assert!(state.open.is_none() && state.sealed.is_empty() && state.writing.is_some());
    drop(state);
    assert!(bench.log.has_pending(), "it is on its way");
    bench.write_all();
}

#[test]
fn behind_a_group_there_is_nothing_of_what_the_arena_held_before() {
    let bench = Bench::new(Sync::No);
    bench.append_value(&[7; 5000]).unwrap();
    bench.write_all();
    for _ in 0..BUFFERS {
        bench.rotate();
    }
    bench.append();
    bench.write_all();
    let sector = bench.flash.peek(bench.log.geometry.zone_offset(BUFFERS), 512);
    let length = group::parse(&sector).unwrap().length as usize;
    assert!(sector[length..].iter().all(|byte| *byte == 0));
}

#[test]
fn what_is_filled_of_the_active_buffer_is_said() {
    let bench = Bench::new(Sync::No);
    let place = bench.append_value(&[7; 1000]).unwrap();
    let end = u64::from(place) + bench.record(place).header.record_bytes() as u64;
    assert_eq!(bench.log.filled_bytes(), end);
    bench.rotate();
    assert_eq!(bench.log.filled_bytes(), 0);
}

/// Run by Miri, it shows that a reader of a record touches none of the bytes that an appender writes behind it:
/// `MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p tapetum --lib log::`
#[test]
#[allow(clippy::disallowed_methods, reason = "`Env::system` asks for clocks that Miri does not have")]
fn a_record_is_read_while_others_are_appended_right_behind_it() {
    const RECORDS: usize = 40;
    let bench = Bench::new(Sync::No);
    let (send, places) = std::sync::mpsc::channel();
    let log = bench.log.clone();
    let appender = std::thread::spawn(move || {
        for number in 0..RECORDS {
            // The shortest records there are, and longer ones.
            let (stored, mut place) = (vec![number as u8; number % 5 * 30], 0);
            let header = Header::value(0, b"k".len(), stored.len());
            log.append(&[Draft { header, key: b"k", stored: &stored }], |_, _, at| place = at).unwrap();
            send.send((place, stored)).unwrap();
        }
    });
    let mut seen = Vec::new();
    for (place, stored) in places {
        seen.push((place, stored));
        seen.iter().for_each(|(place, stored)| assert_eq!(bench.record(*place).stored, stored));
    }
    appender.join().unwrap();
    assert_eq!(seen.len(), RECORDS);
}

/// A flash whose polls do something first.
#[derive(Clone)]
struct SlowFlash {
    flash: FaultyFlash,
    first: Arc<OnceLock<Box<dyn Fn() + Send + std::marker::Sync>>>,
}

struct SlowQueue(SlowFlash, Box<dyn FlashQueue>);

impl Flash for SlowFlash {
    fn capacity_bytes(&self) -> u64 {
        self.flash.capacity_bytes()
    }

    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        self.flash.grow(capacity_bytes)
    }

    fn sector_bytes(&self) -> u32 {
        self.flash.sector_bytes()
    }

    fn describe(&self) -> String {
        self.flash.describe()
    }

    fn open_queue(&self, memory: &PairMemory, depth: u32) -> std::io::Result<Box<dyn FlashQueue>> {
        Ok(Box::new(SlowQueue(self.clone(), self.flash.open_queue(memory, depth)?)))
    }
}

impl FlashQueue for SlowQueue {
    unsafe fn submit(&mut self, command: &Command) {
        // SAFETY: the caller's.
        unsafe { self.1.submit(command) };
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if let Some(first) = self.0.first.get() {
            first();
        }
        self.1.poll(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.1.wait(timeout);
    }

    fn event_fd(&self) -> Option<std::os::fd::RawFd> {
        self.1.event_fd()
    }
}

#[test]
fn who_appends_does_not_wait_for_a_system_call_that_sends_a_group() {
    const PATIENCE: Duration = Duration::from_secs(5);
    let flash = FaultyFlash::new(8 << 20, 1);
    let slow = SlowFlash { flash: flash.clone(), first: Arc::default() };
    let bench = Bench::over(Arc::new(slow.clone()), flash, Sync::Always);
    let (went_on, log) = (Arc::new(OnceLock::new()), bench.log.clone());
    let noted = went_on.clone();
    // The first call lasts until another thread has appended and asked for its record to be sent.
    let first = move || {
        noted.get_or_init(|| {
            let (log, (send, sent)) = (log.clone(), std::sync::mpsc::channel());
            let other = move || {
                let header = Header::value(0, b"key".len(), 0);
                log.append(&[Draft { header, key: b"key", stored: b"" }], |_, _, _| {}).unwrap();
                log.advance(true, 0);
                let _ = send.send(());
            };
            let _thread = Env::system().spawn("other", other).unwrap();
            sent.recv_timeout(PATIENCE).is_ok()
        });
    };
    bench.append();
    assert!(slow.first.set(Box::new(first)).is_ok());
    bench.log.advance(true, 0);
    assert_eq!(went_on.get(), Some(&true), "it waited");
}

#[test]
fn who_has_left_is_not_kept() {
    let bench = Bench::new(Sync::No);
    let [stays, leaves] = [(); 2].map(|()| Arc::new(Notifier::default()));
    for notifier in [&stays, &leaves] {
        bench.log.register(notifier.clone());
    }
    bench.log.unregister(&leaves);
    assert_eq!((Arc::strong_count(&stays), Arc::strong_count(&leaves)), (2, 1));
}

#[test]
fn a_group_is_bound_to_its_place_on_flash() {
    let geometry = Geometry::new(8 << 20, SEGMENT_BYTES, 2, 512).unwrap();
    let Salt { store, address, version } = group_salt(&geometry, 7, 3, 1024);
    assert_eq!((store, address, version), (7, geometry.zone_offset(3) + 1024, 3));
}
