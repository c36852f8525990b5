//! Quiet keyspaces. The next image of a keyspace attests the last ones; a quiet keyspace has no next image (docs/decisions/ordered-crash.md, rule
//! 11). After a while the manifest attests them instead, by a new round.
//!
//! Threads: the maintenance thread.

use super::slabs::keyspace_slots::KeyspaceSlots;
use std::collections::BTreeMap;
use tapetum_base::keyspace::KeyspaceId;

/// Microseconds without a new image after which the last ones are attested.
const QUIET_US: u64 = 5_000_000;

#[derive(Default)]
pub struct Quiet {
    /// For each keyspace with unattested images: the number of durable images when it was last seen to change, and the time of that, microseconds.
    seen: BTreeMap<KeyspaceId, (u64, u64)>,
}

impl Quiet {
    /// Makes a keyspace begin a round if it has been quiet for long enough.
    pub fn look(&mut self, slots: &KeyspaceSlots, now_us: u64) {
        let (id, marks) = (slots.keyspace(), slots.nodes().image_marks());
        if marks.landed == 0 || marks.attest(&marks) {
            self.seen.remove(&id);
            return;
        }
        let seen = self.seen.entry(id).or_insert((marks.landed, now_us));
        if seen.0 != marks.landed {
            *seen = (marks.landed, now_us);
        } else if now_us >= seen.1 + QUIET_US {
            slots.nodes().attest_images();
        }
    }

    /// Drops keyspaces that no longer exist.
    pub fn retain(&mut self, is_there: impl Fn(KeyspaceId) -> bool) {
        self.seen.retain(|id, _| is_there(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::super::store_bench::Bench;
    use super::QUIET_US;
    use crate::hashed::collect::victim::tests::SMALL_BYTES;
    use crate::{Error, Step};
    use tapetum_base::log::Sync;
    use tapetum_drive::FaultyFlash;

    const OLD: &[u8] = b"the value of yesterday";
    const NEW: &[u8] = b"the value of this morning";

    /// A store with an overwritten value, whose newest image is damaged after a power failure.
    fn rotten_after(quiet_us: u64) -> Result<Option<Vec<u8>>, Error> {
        let mut bench = Bench::new(Sync::Always, 1);
        let orders = bench.orders();
        for value in [OLD, NEW] {
            bench.put(orders, b"key", value).unwrap();
            while bench.store.maintain() != Step::Idle {}
        }
        bench.clock.advance_us(quiet_us);
        while bench.store.maintain() != Step::Idle {}
        bench.clock.advance_us(quiet_us);
        while bench.store.maintain() != Step::Idle {}
        let rot = |flash: &FaultyFlash| {
            let bytes = flash.peek(0, SMALL_BYTES);
            let at = bytes.windows(NEW.len()).position(|window| window == NEW).expect("the image is on flash");
            flash.flip(at as u64, 1);
        };
        let mut bench = bench.reopen_after(rot)?;
        let orders = bench.orders();
        Ok(bench.get(orders, b"key"))
    }

    #[test]
    fn rot_of_the_last_image_is_told_once_the_keyspace_was_quiet() {
        // Torn writes and rot of the last moments before a failure cannot be told apart.
        assert_eq!(rotten_after(0).unwrap().as_deref(), Some(OLD));
        match rotten_after(QUIET_US) {
            Err(Error::Corrupt(what)) => assert!(what.contains("slot"), "{what}"),
            other => panic!("{other:?}"),
        }
    }
}
