//! Copies of pages that differed from their images at the moment of a freeze.

use std::sync::Mutex;
use std::time::Duration;
use tapetum_base::error::Error;
use tapetum_base::media::io::lock;
use tapetum_drive::{Command, Drive, Lease, LocalBuffer, LocalRange, Operation, ProgramId, Purpose, QueuePair, Status};
use tapetum_kernels::ordered::{NODE_BYTES, NodePage};

/// How often a page that somebody has is asked for, before the drive counts as stopped.
pub const PATIENCE: u32 = 1_000_000;

/// Where pages are copied to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyTo {
    /// Local memory, as long as that has room: a query at the drive reads them there.
    Local,
    /// Host memory: single pages that stay long in local memory would leave no room between them for longer buffers.
    Host,
}

pub enum PageCopy {
    /// `None` while somebody copies it on, which is short.
    Local(Mutex<Option<LocalBuffer>>),
    Host(Box<NodePage>),
}

/// The drive's program that copies bytes of local memory.
pub fn concat_of(drive: &Drive) -> Result<ProgramId, Error> {
    let identity = drive.identity();
    let concat = identity.programs.iter().find(|program| program.name == "concat");
    Ok(concat.ok_or_else(|| Error::Io("the drive has no program concat".into()))?.id)
}

/// Copies pages within local memory.
pub struct PageCopying<'a> {
    pub drive: &'a Drive,
    pub pair: &'a mut QueuePair,
    pub concat: ProgramId,
}

/// The buffers of a copy, each unless the drive stopped and keeps it.
pub struct Copied {
    pub from: Option<LocalBuffer>,
    pub into: Option<LocalBuffer>,
    /// Where the copy is; `None`: the queue had no place.
    pub range: Result<Option<LocalRange>, Error>,
}

impl PageCopying<'_> {
    /// Copies a page to a place in a buffer.
    pub fn copy(&mut self, from: LocalBuffer, into: LocalBuffer, at: usize) -> Copied {
        let length = NODE_BYTES as u32;
        let output = LocalRange { offset: into.offset() + at as u64, length };
        let input = LocalRange { offset: from.offset(), length };
        let execute = Operation::Execute { program: self.concat, parameters: LocalRange::EMPTY, input, output };
        let command = Command::new(0, execute).of(Purpose::Scan);
        let buffers = |lease| {
            let Lease::Buffers([from, into]) = lease else { unreachable!("it was lent both") };
            (Some(from), Some(into))
        };
        if let Err(full) = self.pair.submit(command, Lease::Buffers([from, into])) {
            let (from, into) = buffers(full.lease);
            return Copied { from, into, range: Ok(None) };
        }
        let mut returned = Vec::new();
        while self.pair.poll(&mut returned) == 0 {
            if self.pair.event_fd().is_none() && !self.pair.is_ready() {
                // A simulated drive that stopped never answers.
                let range = Err(Error::Io("the drive stopped answering".into()));
                return Copied { from: None, into: None, range };
            }
            self.pair.wait(Some(Duration::from_millis(1)));
        }
        let Some(returned) = returned.pop() else { unreachable!("something was polled") };
        let (from, into) = buffers(returned.lease);
        let range = match returned.completion.status {
            Status::Success => Ok(Some(output)),
            _ => Err(Error::of_command(self.drive, "copy of a page", &returned.completion)),
        };
        Copied { from, into, range }
    }
}

impl PageCopy {
    /// Takes the buffer of a copy in local memory, to be given back. `None`: the copy is in host memory, or a drive that stopped has it.
    pub fn take(&self) -> Option<LocalBuffer> {
        let PageCopy::Local(buffer) = self else { return None };
        for _ in 0..PATIENCE {
            if let Some(buffer) = lock(buffer).take() {
                return Some(buffer);
            }
            std::thread::yield_now();
        }
        None
    }

    pub fn give_back(&self, page: LocalBuffer) {
        if let PageCopy::Local(buffer) = self {
            *lock(buffer) = Some(page);
        }
    }
}
