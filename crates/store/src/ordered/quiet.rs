//! Keyspaces that have gone quiet: nobody attests the images that they wrote last, as the next image of a keyspace would
//! (docs/decisions/ordered-crash.md, rule 11). After a while the manifest does so, by a new round.
//!
//! Threads: that of maintenance.

use super::slabs::keyspace_slots::KeyspaceSlots;
use std::collections::BTreeMap;
use tapetum_base::keyspace::KeyspaceId;

/// After so long without a new image the last ones are attested, microseconds.
const QUIET_US: u64 = 5_000_000;

#[derive(Default)]
pub struct Quiet {
    /// How many images had landed when a keyspace with images that nobody attests was first seen so, and when that was, microseconds.
    seen: BTreeMap<KeyspaceId, (u64, u64)>,
}

impl Quiet {
    /// Has a keyspace begin a round if it has been quiet for long enough.
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

    /// Keyspaces that are gone are not looked at any more.
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

    /// A store with a value written over, whose newest image rots after a power failure.
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
        // Torn, or rotten: of the last moments before the failure nobody can tell.
        assert_eq!(rotten_after(0).unwrap().as_deref(), Some(OLD));
        match rotten_after(QUIET_US) {
            Err(Error::Corrupt(what)) => assert!(what.contains("slot"), "{what}"),
            other => panic!("{other:?}"),
        }
    }
}
