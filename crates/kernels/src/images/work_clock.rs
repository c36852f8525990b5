//! How long a stage has worked on a picture.

use crate::image_error::ImageError;

/// Microseconds of work so far, from any origin; `None` when nobody wants the picture any more. A long stage asks between parts of its
/// work, so the clock must be cheap beside a millisecond.
pub type WorkClock<'a> = dyn FnMut() -> Option<u64> + 'a;

/// For who has time: it stands still.
pub fn standing_clock() -> Option<u64> {
    Some(0)
}

/// Until when a stage may work.
pub(super) struct WorkDeadline<'a, 'b> {
    clock: &'a mut WorkClock<'b>,
    until_us: u64,
}

impl<'a, 'b> WorkDeadline<'a, 'b> {
    /// So long from this call on.
    pub fn new(clock: &'a mut WorkClock<'b>, deadline_ms: u32) -> Result<WorkDeadline<'a, 'b>, ImageError> {
        let began_us = clock().ok_or(ImageError::TooLong)?;
        Ok(WorkDeadline { clock, until_us: began_us.saturating_add(u64::from(deadline_ms) * 1000) })
    }

    pub fn goes_on(&mut self) -> bool {
        (self.clock)().is_some_and(|now_us| now_us < self.until_us)
    }
}
