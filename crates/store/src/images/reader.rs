//! Batches of pictures, read by one session: many pictures are at the drive at once.

use super::ahead::{AheadBudget, PictureCost};
use super::bound_plan::BoundPlan;
use super::picture_error::{PictureError, PictureProblem};
use super::set::ImageSet;
use crate::api::blocking::{KeyspaceHandle, poll_or_wait};
use crate::api::session::Session;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tapetum_base::error::Error;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::request::{Outcome, Reply};
use tapetum_drive::Size;
use tapetum_kernels::images::ImageChance;

/// Which pictures, and what chance depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRequest {
    /// Places in the set.
    pub items: Vec<u64>,
    pub seed: u64,
    pub epoch: u64,
}

/// Pictures one behind the other, as many as were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PictureBatch {
    pub samples: Vec<u8>,
    pub labels: Vec<u32>,
    pub items: Vec<u64>,
    /// Those that failed, by their rows, which are zero.
    pub failed: Vec<(usize, PictureError)>,
}

impl PictureBatch {
    /// Leaves out the rows that failed.
    pub fn without_failed(mut self) -> PictureBatch {
        let row_bytes = self.samples.len().checked_div(self.labels.len()).unwrap_or(0);
        for (row, _) in self.failed.drain(..).rev() {
            self.samples.drain(row * row_bytes..(row + 1) * row_bytes);
            self.labels.remove(row);
            self.items.remove(row);
        }
        self
    }
}

pub struct PictureReader {
    session: Session,
    keyspace: KeyspaceRef,
    set: Arc<ImageSet>,
    plan: BoundPlan,
    cost: PictureCost,
    ahead: AheadBudget,
}

/// The samples of a batch, or an error where the process cannot have as many bytes: a failed allocation of `vec!` would end it.
fn zeroed(bytes: usize, pictures: usize) -> Result<Vec<u8>, Error> {
    let mut trial: Vec<u8> = Vec::new();
    trial.try_reserve_exact(bytes).map_err(|_| {
        Error::Options(format!(
            "a batch of {pictures} pictures takes {}, which this machine does not have: let it have fewer or smaller pictures",
            Size(bytes as u64)
        ))
    })?;
    // The compiler would leave the trial out. `vec!` takes its place, as it has zeroes without writing them.
    drop(std::hint::black_box(trial));
    Ok(vec![0; bytes])
}

impl PictureReader {
    /// For the calling thread alone. The plan ends in a batch.
    ///
    /// # Errors
    /// When there are no more queue pairs.
    pub(super) fn new(
        keyspace: &KeyspaceHandle,
        set: Arc<ImageSet>,
        plan: &BoundPlan,
        cost: PictureCost,
        ahead: AheadBudget,
    ) -> Result<PictureReader, Error> {
        let session = keyspace.store().session_of_one_thread()?;
        let (keyspace, plan) = (keyspace.keyspace(), plan.clone());
        Ok(PictureReader { session, keyspace, set, plan, cost, ahead })
    }

    /// Reads a batch. `None` when `stop` was raised meanwhile; then the reader is of no more use.
    ///
    /// # Errors
    /// Errors of single pictures are in the batch; an error here concerns all of them.
    pub fn read(&mut self, request: &BatchRequest, stop: &AtomicBool) -> Result<Option<PictureBatch>, Error> {
        let count = request.items.len();
        if let Some(item) = request.items.iter().find(|item| **item >= self.set.len() as u64) {
            return Err(Error::Options(format!("there is no item {item}: the set has {}", self.set.len())));
        }
        let labels = request.items.iter().map(|item| self.set.labels()[*item as usize]).collect();
        let samples = zeroed(count * self.cost.row_bytes, count)?;
        let mut batch = PictureBatch { samples, labels, items: request.items.clone(), failed: Vec::new() };
        let (mut submitted, mut left, mut replies) = (0, count, Vec::new());
        while left > 0 {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            while submitted < count && self.submit(request, submitted) {
                submitted += 1;
            }
            poll_or_wait(&mut self.session, &mut replies);
            for reply in replies.drain(..) {
                left -= 1;
                self.take(reply, &mut batch);
            }
        }
        batch.failed.sort_by_key(|(row, _)| *row);
        Ok(Some(batch))
    }

    /// Whether there was room for it.
    fn submit(&mut self, request: &BatchRequest, row: usize) -> bool {
        let item = request.items[row];
        let bytes = self.cost.of_item(&self.set, item as usize);
        if !self.ahead.take(bytes) {
            return false;
        }
        let chance = ImageChance { seed: request.seed, epoch: request.epoch, item };
        let pipeline = self.plan.pipeline(chance, self.cost.row_bytes as u32);
        let key = self.set.key(item as usize);
        let is_submitted = self.session.submit_through(self.keyspace, row as u64, key, &pipeline).is_ok();
        if !is_submitted {
            self.ahead.give(bytes);
        }
        is_submitted
    }

    fn take(&mut self, reply: Reply, batch: &mut PictureBatch) {
        let row = reply.token as usize;
        self.ahead.give(self.cost.of_item(&self.set, batch.items[row] as usize));
        let row_bytes = self.cost.row_bytes;
        let key = self.set.key(batch.items[row] as usize);
        let failed = |problem| PictureError { key: key.to_vec(), problem };
        let error = match reply.outcome {
            Outcome::Value { value, .. } => {
                let bytes = self.session.bytes(value);
                if bytes.len() == row_bytes {
                    batch.samples[row * row_bytes..][..row_bytes].copy_from_slice(bytes);
                    return;
                }
                failed(PictureProblem::Length { bytes: bytes.len() })
            }
            Outcome::Failed(error) => PictureError::of(key, self.plan.plan(), error),
            _ => failed(PictureProblem::Missing),
        };
        batch.failed.push((row, error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_the_machine_has_no_room_for_is_an_error() {
        let told = zeroed(1 << 46, 7).unwrap_err().to_string();
        assert!(told.starts_with("a batch of 7 pictures takes 64TiB, which"), "{told}");
        assert_eq!(zeroed(5, 1), Ok(vec![0; 5]));
    }
}
