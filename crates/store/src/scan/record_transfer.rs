//! A result that comes to the host record by record, as a host that asks for one after the other has it (nKV, figure 8): to compare with
//! results that come as a whole.
//!
//! ```text
//! result, at the drive: frames of one row each ─► a command copies the next one beside ─► wake-up ─► to the host ─► the next command
//! ```
//! Frames that are not rows are looked at where they are.

use super::flight::Flight;
use super::query_scan::QueryError;
use tapetum_base::error::Error;
use tapetum_drive::{
    Command, Drive, Lease, LocalBuffer, LocalRange, Operation, ProgramId, Purpose, QueuePair, Returned, Status,
};
use tapetum_kernels::scan::run::{FRAME_HEAD_BYTES, FrameKind};

/// Room for a row, at first.
const ROW_BYTES: usize = 4096;

pub(super) struct RecordTransfer {
    pub flight: Flight,
    pub tag: u64,
    concat: ProgramId,
    /// The result; away while a command copies a frame of it.
    work: Option<LocalBuffer>,
    /// The buffer for one row.
    row: Option<LocalBuffer>,
    /// The offset in the result's buffer of the next frame, and of the end of the last one.
    at: usize,
    end: usize,
    /// The bytes of the frame that was copied.
    copied: usize,
    /// A command is on its way.
    is_away: bool,
}

/// The next part of a result.
pub(super) enum NextFrame<'a> {
    /// A frame.
    Here(&'a [u8]),
    /// A row comes with the next wake-up.
    Away,
    End,
}

impl RecordTransfer {
    /// Begins with a flight that has ended, whose result has `bytes`.
    pub fn new(mut flight: Flight, bytes: usize, concat: ProgramId, tag: u64) -> RecordTransfer {
        let at = flight.frames_at();
        let (work, end, row) = (flight.work.take(), at + bytes, None);
        RecordTransfer { flight, tag, concat, work, row, at, end, copied: 0, is_away: false }
    }

    pub fn is_away(&self) -> bool {
        self.is_away
    }

    /// Its command has ended.
    pub fn end(&mut self, drive: &Drive, Returned { completion, lease }: Returned) -> Result<(), QueryError> {
        let Lease::Buffers([work, row]) = lease else { unreachable!("it was lent both") };
        (self.work, self.row, self.is_away) = (Some(work), Some(row), false);
        match completion.status {
            Status::Success => Ok(()),
            _ => Err(Error::of_command(drive, "copy of a row", &completion).into()),
        }
    }

    /// The next frame, and the bytes that crossed for it.
    pub fn next<'a>(
        &'a mut self,
        drive: &Drive,
        pair: &'a mut QueuePair,
        crossed: &mut u64,
    ) -> Result<NextFrame<'a>, QueryError> {
        if self.is_away {
            return Ok(NextFrame::Away);
        }
        if self.copied > 0 {
            let bytes = std::mem::take(&mut self.copied);
            self.at += bytes;
            *crossed += bytes as u64;
            let Some(row) = &self.row else { unreachable!("a row was copied there") };
            return Ok(NextFrame::Here(pair.look(Purpose::Scan, row, 0..bytes)));
        }
        if self.at == self.end {
            return Ok(NextFrame::End);
        }
        let Some(work) = self.work.take() else { unreachable!("no command is on its way") };
        let (is_row, bytes) = self.head(pair, &work)?;
        *crossed += FRAME_HEAD_BYTES as u64;
        if !is_row {
            let at = self.at;
            self.at += bytes;
            *crossed += bytes as u64;
            let work = self.work.insert(work);
            return Ok(NextFrame::Here(pair.look(Purpose::Scan, work, at..at + bytes)));
        }
        if self.row.as_ref().is_none_or(|row| row.len() < bytes) {
            self.row = drive.local().allocate(bytes.max(ROW_BYTES));
        }
        let row = self.row.take().ok_or(QueryError::ResultTooLarge)?;
        let input = LocalRange { offset: work.offset() + self.at as u64, length: bytes as u32 };
        let output = LocalRange { offset: row.offset(), length: bytes as u32 };
        let execute = Operation::Execute { program: self.concat, parameters: LocalRange::EMPTY, input, output };
        let submitted = pair.submit(Command::new(self.tag, execute).of(Purpose::Scan), Lease::Buffers([work, row]));
        assert!(submitted.is_ok(), "the queue has a place beside those of pipelines");
        (self.copied, self.is_away) = (bytes, true);
        Ok(NextFrame::Away)
    }

    /// Whether the next frame is a row, and its bytes with the head.
    fn head(&self, pair: &QueuePair, work: &LocalBuffer) -> Result<(bool, usize), QueryError> {
        if self.end - self.at < FRAME_HEAD_BYTES {
            return Err(QueryError::Result);
        }
        let [kind, _, _, _, length @ ..]: [u8; FRAME_HEAD_BYTES] =
            pair.copy_array_to_host(Purpose::Scan, work, self.at);
        let bytes = FRAME_HEAD_BYTES + u32::from_le_bytes(length) as usize;
        if bytes > self.end - self.at {
            return Err(QueryError::Result);
        }
        Ok((kind == FrameKind::Rows as u8, bytes))
    }
}
