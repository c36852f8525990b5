//! When the log writes and flushes, on a drive in memory and by a clock of the test's own.

use super::*;
use crate::io::{Task, poll_once};
use tapetum_drive::{Drive, Env, FaultyFlash, LocalMemory, Opcode, programs};

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
        let local = LocalMemory::new(4 * SEGMENT_BYTES as usize).unwrap();
        let drive = Drive::new(Arc::new(flash.clone()), local, programs::built_in(), Env::simulated(1).0);
        let geometry = Geometry::new(8 << 20, SEGMENT_BYTES, 2, 512).unwrap();
        let arenas = [(); BUFFERS as usize].map(|()| drive.local().allocate(SEGMENT_BYTES as usize).unwrap());
        let start = Start {
            buffer: 0,
            position: 0,
            stamp_next: 1,
            stamp_durable: 0,
            previous_crc: 0,
            crc_sealed: 0,
            generation: 1,
        };
        let queue = drive.queue_pair(64).unwrap();
        let log = Arc::new(Log::new(queue, arenas, (geometry, 1), sync, Planted::default(), start));
        let io = Io::new(drive.queue_pair(64).unwrap());
        Bench { flash, drive, io, log }
    }

    fn append(&self) {
        let header = Header::value(0, b"key".len(), b"value".len());
        self.log.append(&[Draft { header, key: b"key", stored: b"value" }], |_, _, _| {}).unwrap();
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
