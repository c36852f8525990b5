//! Pictures: folders of them imported, and batches of them made by the drive's programs.
//!
//! ```text
//! folder ─ import ─► items of a keyspace (flags: the class) ─ PictureLoader ─► submit_through ─► batches
//!                    ImageSet: which keys, which classes
//! ```
//! 1. Which crop a picture gives depends on seed, epoch and its place in the set alone, whoever reads it, when, and in which batch.
//! 2. Batches come in the order in which they were asked for.
//!
//! Threads: each of a loader's has a session of its own; without compute units it runs the programs of its pictures itself.

mod ahead;
mod bound_plan;
mod import;
mod loader;
mod picture_error;
mod reader;
mod set;

pub use bound_plan::{BoundPlan, OutputRoom};
pub use import::{ENDINGS_NAMED, ImportError, ImportReport, LeftOut, PictureFile, PictureFolder, import_folder};
pub use loader::{LoaderOptions, LoaderStats, PictureLoader};
pub use picture_error::{PictureError, PictureProblem};
pub use reader::{BatchRequest, PictureBatch};
pub use set::{ImageSet, SetError};
pub use tapetum_kernels::images::{
    Frame, FrameShape, ImageChance, ImageError, ImagePlan, JpegQuality, PlanError, SampleOrder, SampleType,
    encode_jpeg, epoch_order,
};
