//! A file system that is full for a while: writes are refused with that reason, reads go on, and when there is room again the same
//! connection can write. Now and then the power fails while it is full. What was acknowledged is there all the time.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use super::mount::Mount;
use super::state::{Forgets, Room};
use crate::Failure;
use crate::kill::Plan;
use tapetum_bench::client::{Connection, Line};
use tapetum_bench::random::Random;
use tapetum_bench::server::{Server, ServerOptions};

/// Times that it is full.
const ROUNDS: u64 = 8;
const KEYS: u64 = 200;
/// Long enough for a server to look for room, and to be opened again on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Writes within which a full file system is noticed: each is forced to it.
const WRITES_MAX: u64 = 1000;
const SMALL_BYTES: usize = 700;
/// Lies in extents of its own.
const LARGE_BYTES: usize = 2 << 20;

struct Full {
    mount: Mount,
    options: ServerOptions,
    random: Random,
    /// The number of each key's last acknowledged write.
    acknowledged: BTreeMap<u64, u64>,
    /// Key and number of the write that was refused last. The key may have it after the store was opened again.
    in_doubt: Option<(u64, u64)>,
    writes: u64,
}

fn name(key: u64) -> Vec<u8> {
    format!("key{key}").into_bytes()
}

fn value(write: u64) -> Vec<u8> {
    let bytes = if write.is_multiple_of(32) { LARGE_BYTES } else { SMALL_BYTES };
    let mut random = Random::new(write);
    (0..bytes).map(|_| random.below(256) as u8).collect()
}

/// Fills and empties the file system under a server.
pub fn run(scratch: &Path, plan: &Plan) -> Result<(), Failure> {
    let mounted = scratch.join("mounted");
    let mount = Mount::new(&mounted, &scratch.join("durable"), Forgets::Nothing)?;
    let options = ["--capacity", "128MiB", "--memory", "128MiB", "--write-buffer", "1MiB", "--sync", "always"];
    let mut options = ServerOptions::new(&plan.binary, &mounted.join("data"), &options)?;
    options.log = scratch.join("server.log");
    let mut full = Full {
        mount,
        options,
        random: Random::new(plan.seed),
        acknowledged: BTreeMap::new(),
        in_doubt: None,
        writes: 0,
    };
    full.live()
        .map_err(|failure| format!("{failure}\nseed {}; the log is {}", plan.seed, full.options.log.display()))?;
    println!(
        "test-power-cut: the file system was full {ROUNDS} times in {} writes; none that was acknowledged is lost",
        full.writes
    );
    Ok(())
}

impl Full {
    fn live(&mut self) -> Result<(), Failure> {
        let mut server = self.options.start()?;
        for round in 0..ROUNDS {
            let mut connection = Connection::open(server.address())?;
            for _ in 0..50 + self.random.below(300) {
                match self.write(&mut connection)? {
                    Line::Stored => {}
                    other => return Err(format!("there is room, and a set was answered {other:?}").into()),
                }
            }
            let room = if round % 2 == 0 { Room::None } else { Room::NoneUnsaid };
            self.mount.set_room(room);
            self.write_until_refused(&mut connection)?;
            if room == Room::None {
                // A write in doubt is not durable, and not shown.
                self.verify(&mut connection, false)?;
            }
            if self.random.one_in(3) {
                server = self.cut_while_full(server)?;
                connection = Connection::open(server.address())?;
            } else {
                std::thread::sleep(Duration::from_millis(self.random.below(3000)));
                self.mount.set_room(Room::Enough);
                self.write_until_stored(&mut connection)?;
            }
            self.verify(&mut connection, true)?;
        }
        server.terminate()
    }

    /// The power fails while the file system is full; there is room when it is back.
    fn cut_while_full(&mut self, server: Server) -> Result<Server, Failure> {
        self.mount.cut(&mut self.random)?;
        server.kill_and_then(|| self.mount.release())?;
        self.mount.set_room(Room::Enough);
        self.mount.restore();
        self.options.start()
    }

    fn write(&mut self, connection: &mut Connection) -> Result<Line, Failure> {
        self.writes += 1;
        let (key, write) = (self.random.below(KEYS), self.writes);
        connection.queue_set(&name(key), 0, &value(write));
        connection.flush()?;
        let reply = connection.read_line()?;
        if reply == Line::Stored {
            self.acknowledged.insert(key, write);
            self.in_doubt.take_if(|(doubted, _)| *doubted == key);
        } else {
            self.in_doubt.get_or_insert((key, write));
        }
        Ok(reply)
    }

    fn write_until_refused(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        self.in_doubt = None;
        for _ in 0..WRITES_MAX {
            match self.write(connection)? {
                Line::Stored => {}
                Line::Other(line) if line.starts_with("SERVER_ERROR no space left on the file system of ") => {
                    return Ok(());
                }
                other => return Err(format!("the file system is full, and a set was answered {other:?}").into()),
            }
        }
        Err("a server wrote on although its file system was full".into())
    }

    fn write_until_stored(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.write(connection)? == Line::Stored {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("there is room again, and sets are still refused after {PATIENCE:?}").into())
    }

    /// An error unless every key has its last acknowledged write, or the write in doubt.
    fn verify(&self, connection: &mut Connection, asks_for_doubtful: bool) -> Result<(), Failure> {
        for (&key, &write) in &self.acknowledged {
            let doubted = self.in_doubt.filter(|(doubted, _)| *doubted == key).map(|(_, write)| write);
            if doubted.is_some() && !asks_for_doubtful {
                continue;
            }
            connection.queue_get([&name(key)[..]]);
            connection.flush()?;
            let mut found = None;
            connection.read_values(|value| found = Some(value.bytes.to_vec()))?;
            let is_right = [Some(write), doubted].into_iter().flatten().any(|write| found == Some(value(write)));
            if !is_right {
                return Err(format!("key{key} does not hold its write {write}, which was acknowledged").into());
            }
        }
        Ok(())
    }
}
