//! Trouble for batches: some are cancelled, and the power may fail at any moment.

use super::{ComputeWorld, PIPELINES, SECTOR_BYTES, slot_at};
use tapetum_drive::{Command, Completion, Lease, Operation, SplitMix64};

/// One step in so many cancels, or checks the state that a power cut would leave.
pub(super) const CANCELS_EVERY: u64 = 12;
pub(super) const CUTS_EVERY: u64 = 50;

impl ComputeWorld {
    /// Cancels all pipelines of a batch, or one, or one that does not exist.
    pub(super) fn cancel(&mut self) {
        let place = self.random.below(self.batches.len() as u64 + 1) as usize;
        let Some((of, batch)) = self.batches.iter_mut().nth(place) else { return };
        let pipeline = if self.random.one_in(3) { None } else { Some(self.random.below(PIPELINES as u64) as u16) };
        let count = batch.pipelines.len();
        batch.to_cancel.extend((0..count).filter(|number| pipeline.is_none_or(|only| usize::from(only) == *number)));
        let (of, tag) = (*of, self.number());
        let command = Command::new(tag, Operation::Cancel { tag: of, pipeline });
        let submitted = self.pair.submit(command, Lease::Nothing);
        assert!(submitted.is_ok(), "there are more credits than commands");
        self.cancels.insert(tag, of);
    }

    pub(super) fn cancelled(&mut self, of: u64, completion: &Completion) -> Result<(), String> {
        let counted = completion.result[0];
        self.tally.cancelled += counted;
        match self.batches.get_mut(&of) {
            Some(batch) => batch.cancelled += counted,
            None if counted > 0 => return Err(format!("{completion:?} of batch {of}, which has ended")),
            None => {}
        }
        if completion.is_success() { Ok(()) } else { Err(format!("{completion:?} of a cancellation")) }
    }

    /// Checks the state that a power failure at this moment would leave.
    pub(super) fn cut_power(&mut self) -> Result<(), String> {
        let seed = self.random.next_u64();
        let survives = |place: usize| SplitMix64::new(seed ^ place as u64).one_in(2);
        let left = self.flash.cut().flash(seed, survives);
        for (slot, bytes) in self.durable.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            let length = (bytes.len() as u64).next_multiple_of(SECTOR_BYTES);
            if !left.peek(slot_at(*slot), length).starts_with(bytes) {
                return Err(format!("after a power cut slot {slot} lacks what a durable sink was said to hold"));
            }
        }
        Ok(())
    }
}
