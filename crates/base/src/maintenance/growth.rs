//! Growth of a store that was made to grow by itself: it takes twice as much of its drive when half of what it has is in use, up to four times
//! what it was made with.
//!
//! Half is early: whoever writes finds room while the system reserves more. What cannot grow any more is full in the end, as any other store.
//!
//! Threads: maintenance's, which the system may keep for the time that it takes to reserve room.

use crate::base::Base;
use crate::engine::job::{Job, Others};
use crate::maintenance::resize;
use crate::media::io::lock;
use std::sync::Arc;
use tapetum_drive::Size;

pub struct GrowthJob {
    base: Arc<Base>,
    /// It grows no more in this opening.
    is_over: bool,
}

impl GrowthJob {
    pub fn new(base: &Arc<Base>) -> GrowthJob {
        let grows = base.options.grows && lock(&base.superblock).grows;
        GrowthJob { base: base.clone(), is_over: !grows }
    }

    fn is_short(&self) -> bool {
        let extents = lock(&self.base.extents);
        extents.free_count() < extents.count() / 2
    }

    fn is_resizing(&self) -> bool {
        lock(&self.base.resizing).as_ref().is_some_and(|resizing| resizing.result().is_none())
    }
}

impl Job for GrowthJob {
    fn step(&mut self, _: Others) -> bool {
        if self.is_over || !self.is_short() || self.is_resizing() {
            return false;
        }
        let (has_bytes, most_bytes) = (self.base.capacity_bytes(), self.base.geometry.capacity_max_bytes());
        let wanted_bytes = (2 * has_bytes).min(most_bytes);
        let grown = resize::grow_flash(&self.base, wanted_bytes).and_then(|bytes| resize::ask(&self.base, bytes));
        if let Err(error) = &grown {
            tracing::warn!("the store stays at {}: {error}", Size(has_bytes));
        }
        self.is_over = grown.is_err() || wanted_bytes == most_bytes;
        true
    }

    fn is_changing(&self) -> bool {
        false
    }

    fn give_up(&mut self) {}

    fn wind_down(&mut self) {}
}
