//! Gets whose values go through programs of the drive.

use super::{Busy, Session};
use tapetum_base::error::Error;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::request::{Outcome, Request};
use tapetum_base::session::near::{NearGet, NearRequest};
use tapetum_drive::{ATTACHMENT_BYTES_MAX, PARAMETERS_MAX, PROGRAMS_MAX, PipelineStage, ProgramId};

/// The application whose pipelines they are. The drive divides its compute units among applications by their weights. The default stands for all
/// callers that name none; others are named when the store is opened, and found by `Store::application`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Application(pub(crate) u16);

/// The programs that run over an item's value at the drive.
#[derive(Clone, Debug, Default)]
pub struct ItemPipeline {
    /// Programs of the drive and their parameters, in order: at most [`PROGRAMS_MAX`], with [`PARAMETERS_MAX`] bytes each.
    pub stages: Vec<(ProgramId, Vec<u8>)>,
    /// A longer output is an error. This much local memory is taken meanwhile.
    pub output_bytes_max: u32,
    /// From the start of its programs; zero: none.
    pub deadline_us: u64,
    /// Data for all programs that does not fit in parameters. At most [`ATTACHMENT_BYTES_MAX`].
    pub attachment: Vec<u8>,
    pub application: Application,
}

impl ItemPipeline {
    fn request(&self) -> Result<NearRequest, Error> {
        let stage = |(program, parameters): &(ProgramId, Vec<u8>)| {
            let long =
                || Error::Options(format!("a stage has more than {PARAMETERS_MAX} bytes of parameters: give it fewer"));
            PipelineStage::new(*program, parameters).ok_or_else(long)
        };
        if self.stages.len() > PROGRAMS_MAX {
            return Err(Error::Options(format!("a pipeline has at most {PROGRAMS_MAX} programs: split it in two")));
        }
        if self.attachment.len() > ATTACHMENT_BYTES_MAX {
            return Err(Error::Options(format!(
                "an attachment has at most {ATTACHMENT_BYTES_MAX} bytes: attach fewer"
            )));
        }
        let stages = self.stages.iter().map(stage).collect::<Result<Vec<_>, Error>>()?;
        let ItemPipeline {
            output_bytes_max, deadline_us, ref attachment, application: Application(application), ..
        } = *self;
        Ok(NearRequest { stages, output_bytes_max, deadline_us, attachment: attachment.clone(), application })
    }
}

impl Session {
    /// As [`Session::submit_to`], for a get whose value goes through programs of the drive; the reply's value is the output of the last. For an item
    /// on flash only this output comes to the host: the drive reads the item, and the programs run where it lies. An item in a write buffer or in the
    /// DRAM tier is the host's own and is copied to the drive first, and so is one that lies in a node of an ordered keyspace, which is small. It does
    /// not go into the DRAM tier.
    ///
    /// A failure in the pipeline is [`Error::Pipeline`](crate::Error::Pipeline), by the place among the given stages. While [`Session::is_ready`],
    /// another poll gets further.
    ///
    /// # Errors
    /// As [`Session::submit`].
    pub fn submit_through(
        &mut self,
        keyspace: KeyspaceRef,
        token: u64,
        key: &[u8],
        pipeline: &ItemPipeline,
    ) -> Result<(), Busy> {
        if !self.has_room() {
            return Err(Busy);
        }
        let near = match pipeline.request() {
            Ok(request) => Box::new(NearGet::new(request)),
            Err(error) => {
                self.core.answer(token, Outcome::Failed(error));
                return Ok(());
            }
        };
        match keyspace.kind() {
            KeyspaceKind::Hashed => {
                self.hashed.start_through((&mut self.core, &self.hashed_engine), keyspace, token, key, near);
            }
            _ => {
                if let Some((slot, target)) = self.target_elsewhere(keyspace, token, &Request::Get { key }, usize::MAX)
                {
                    self.others.get(slot).start_through(&mut self.core, target, key, near);
                }
            }
        }
        Ok(())
    }

    /// Gives up the gets through programs that were submitted with this token. Each is replied to all the same: with its result if that was there
    /// already, else with [`Error::Pipeline`](crate::Error::Pipeline), which says that it was cancelled.
    pub fn cancel_through(&mut self, token: u64) {
        self.hashed.cancel_through(&mut self.core, token);
        self.others.iter_mut().for_each(|(_, part)| part.cancel_through(&mut self.core, token));
    }
}
