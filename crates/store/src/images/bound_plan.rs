//! A plan for pictures as the drive of a store runs it.

use super::picture_error::{PictureError, PictureProblem};
use crate::api::blocking::KeyspaceHandle;
use crate::api::session::{Application, ItemPipeline};
use crate::api::store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tapetum_base::error::Error;
use tapetum_drive::{PipelineFailure, PipelineReason, ProgramId};
use tapetum_kernels::images::{ImageChance, ImagePlan};

/// Room for an output of unknown size; twice as much is tried if it does not suffice.
const OUTPUT_BYTES_FIRST: u32 = 2 << 20;
const OUTPUT_BYTES_MOST: u32 = 64 << 20;

#[derive(Clone, Debug)]
pub struct BoundPlan {
    plan: ImagePlan,
    stages: Vec<(ProgramId, Vec<u8>)>,
    application: Application,
    room: OutputRoom,
}

/// Room for a picture of unknown size: as much as the longest so far took, so that few are made twice. Clones share it.
#[derive(Clone, Debug)]
pub struct OutputRoom(Arc<AtomicU32>);

impl BoundPlan {
    /// # Errors
    /// [`Error::Options`] when the drive lacks a program.
    pub fn new(store: &Store, plan: &ImagePlan) -> Result<BoundPlan, Error> {
        let identity = store.drive_identity();
        let stages = plan.stages().iter().map(|planned| {
            let name = planned.stage.name();
            let program = identity.programs.iter().find(|program| program.name == name);
            let lacks = || Error::Options(format!("the drive lacks the program {name}: use one of this version"));
            Ok((program.ok_or_else(lacks)?.id, planned.stage.encode()))
        });
        let stages = stages.collect::<Result<_, Error>>()?;
        Ok(BoundPlan { plan: plan.clone(), stages, application: Application::default(), room: OutputRoom::default() })
    }

    /// The same, with the known room for pictures of this plan.
    pub fn with_room(self, room: &OutputRoom) -> BoundPlan {
        BoundPlan { room: room.clone(), ..self }
    }

    /// The same, with its pictures counted as those of an application.
    pub fn of_application(self, application: Application) -> BoundPlan {
        BoundPlan { application, ..self }
    }

    pub fn plan(&self) -> &ImagePlan {
        &self.plan
    }

    pub(super) fn pipeline(&self, chance: ImageChance, output_bytes_max: u32) -> ItemPipeline {
        let attachment = chance.encode().to_vec();
        let (stages, application) = (self.stages.clone(), self.application);
        ItemPipeline { stages, output_bytes_max, attachment, application, deadline_us: 0 }
    }

    /// Runs the plan over one item. Gives a frame, or the samples if the plan ends in a batch.
    ///
    /// # Errors
    /// By the stage that went wrong.
    pub fn run(&self, keyspace: &KeyspaceHandle, key: &[u8], chance: ImageChance) -> Result<Vec<u8>, PictureError> {
        let known = self.plan.batch().and_then(|(_, shape)| u32::try_from(shape.bytes()).ok());
        let mut output_bytes_max = known.unwrap_or_else(|| self.room.bytes());
        loop {
            match keyspace.get_through(key, &self.pipeline(chance, output_bytes_max)) {
                Ok(Some(output)) => {
                    self.room.took(output.len());
                    return Ok(output);
                }
                Ok(None) => return Err(PictureError { key: key.to_vec(), problem: PictureProblem::Missing }),
                Err(Error::Pipeline(PipelineFailure { reason: PipelineReason::OutputTooLong, .. }))
                    if output_bytes_max < OUTPUT_BYTES_MOST =>
                {
                    output_bytes_max = output_bytes_max.saturating_mul(2).min(OUTPUT_BYTES_MOST);
                }
                Err(error) => return Err(PictureError::of(key, &self.plan, error)),
            }
        }
    }
}

impl OutputRoom {
    fn bytes(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    fn took(&self, bytes: usize) {
        self.0.fetch_max(u32::try_from(bytes).unwrap_or(OUTPUT_BYTES_MOST), Ordering::Relaxed);
    }
}

impl Default for OutputRoom {
    fn default() -> OutputRoom {
        OutputRoom(Arc::new(OUTPUT_BYTES_FIRST.into()))
    }
}
