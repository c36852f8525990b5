//! `tapetum.Pipeline`: the drive's processing of a picture.

use crate::errors;
use crate::key::Key;
use crate::keyspace::Keyspace;
use crate::samples::Samples;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use tapetum::KeyspaceHandle;
use tapetum::images::{
    BoundPlan, Frame, FrameShape, ImageChance, ImageError, ImagePlan, OutputRoom, PictureError, PictureProblem,
    SampleOrder, SampleType,
};
use tapetum_drive::thread_cpu_us;
use tapetum_kernels::images::{BATCH_MAX, DECODE_DEADLINE_MS_MAX};

/// Stages with | between them, as text or composed by methods. Composing stages that do not fit is an error that names the stage.
#[pyclass(frozen, eq, module = "tapetum")]
#[derive(Clone)]
pub struct Pipeline {
    pub plan: ImagePlan,
    room: OutputRoom,
}

impl PartialEq for Pipeline {
    fn eq(&self, other: &Pipeline) -> bool {
        self.plan == other.plan
    }
}

impl From<ImagePlan> for Pipeline {
    fn from(plan: ImagePlan) -> Pipeline {
        Pipeline { plan, room: OutputRoom::default() }
    }
}

/// Shape and type of samples, in numpy's form.
pub fn shape_of(shape: FrameShape) -> ((u32, u32, u32), &'static str) {
    let FrameShape { width, height, channels, sample, order } = shape;
    let channels = channels.into();
    let sizes = match order {
        SampleOrder::Hwc => (height, width, channels),
        SampleOrder::Chw => (channels, height, width),
    };
    let name = match sample {
        SampleType::U8 => "uint8",
        SampleType::F32 => "float32",
    };
    (sizes, name)
}

/// Samples and shape of one picture of a keyspace.
///
/// # Errors
/// The exception for the failure.
pub fn picture(
    keyspace: &KeyspaceHandle,
    Pipeline { plan, room }: &Pipeline,
    key: &[u8],
    chance: ImageChance,
) -> Result<(Vec<u8>, FrameShape), PictureError> {
    let failed = |problem| PictureError { key: key.to_vec(), problem };
    let bound = BoundPlan::new(keyspace.store(), plan).map_err(|error| failed(PictureProblem::Store(error)))?;
    let made = bound.with_room(room).run(keyspace, key, chance)?;
    let bytes = made.len();
    samples_of(plan, made).map_err(|_| failed(PictureProblem::Length { bytes }))
}

/// The samples of one picture. The input is a frame, or bare samples if the pipeline ends in a batch.
fn samples_of(plan: &ImagePlan, mut made: Vec<u8>) -> Result<(Vec<u8>, FrameShape), ImageError> {
    if let Some((_, shape)) = plan.batch() {
        return Ok((made, shape));
    }
    let frame = Frame::decode(&made)?;
    let (shape, header) = (frame.shape, made.len() - frame.samples.len());
    made.drain(..header);
    Ok((made, shape))
}

impl Pipeline {
    /// The pipeline with another stage.
    fn then(&self, stage: &str) -> PyResult<Pipeline> {
        let text = self.plan.to_string();
        Pipeline::parse(&format!("{text} | {stage}"))
    }

    fn parse(text: &str) -> PyResult<Pipeline> {
        Ok(text.parse::<ImagePlan>().map_err(errors::pipeline)?.into())
    }
}

/// The argument for a pipeline: a pipeline, or its text.
enum PipelineOrText {
    Composed(Pipeline),
    Text(String),
}

impl FromPyObject<'_, '_> for PipelineOrText {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<PipelineOrText> {
        if let Ok(pipeline) = object.cast::<Pipeline>() {
            return Ok(PipelineOrText::Composed(pipeline.get().clone()));
        }
        let wrong =
            |_| PyTypeError::new_err("a pipeline is a tapetum.Pipeline or its text, such as 'decode | resize 224x224'");
        Ok(PipelineOrText::Text(object.extract().map_err(wrong)?))
    }
}

/// A number of pixels for both sides, or (height, width) as in torchvision.
fn size_text(size: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(side) = size.extract::<u32>() {
        return Ok(side.to_string());
    }
    let sizes = size.extract::<(u32, u32)>();
    let (height, width) = sizes.map_err(|_| PyTypeError::new_err("a size is a number, or (height, width)"))?;
    Ok(format!("{width}x{height}"))
}

fn decode_text(name: &str, grey: bool, orient: bool, scaled: bool, deadline: Option<f64>) -> String {
    let word = |is: bool, word| if is { word } else { "" };
    let deadline = deadline.map_or(String::new(), |seconds| format!(" deadline={seconds}"));
    let (grey, orient, scaled) = (word(grey, " grey"), word(orient, " orient"), word(scaled, " scaled"));
    format!("{name}{grey}{orient}{scaled}{deadline}")
}

#[pymethods]
impl Pipeline {
    /// A pipeline from its text, such as 'jpeg_decode | random_resized_crop 224 | flip'. A pipeline is returned unchanged.
    #[new]
    #[pyo3(signature = (text=PipelineOrText::Text("jpeg_decode".into())), text_signature = "(text='jpeg_decode')")]
    fn new(text: PipelineOrText) -> PyResult<Pipeline> {
        match text {
            PipelineOrText::Composed(pipeline) => Ok(pipeline),
            PipelineOrText::Text(text) => Pipeline::parse(&text),
        }
    }

    /// ProcPIPE's pipeline for ResNet-50.
    #[staticmethod]
    fn resnet50() -> PyResult<Pipeline> {
        Pipeline::parse("resnet50")
    }

    /// The pipeline of AlexNet.
    #[staticmethod]
    fn alexnet() -> PyResult<Pipeline> {
        Pipeline::parse("alexnet")
    }

    /// Decodes JPEG, PNG and WebP files, by their first bytes, to pictures of height × width × 3 of uint8. Transparency is dropped, of 16 bits
    /// the upper 8 are kept, and an animated WebP is an error. `gray`, or `grey`: one channel; `orient`: upright according to EXIF; `scaled`:
    /// large JPEG pictures at a fraction of their size, if the next stage has a size; `deadline`: as `with_deadline`.
    #[staticmethod]
    #[pyo3(signature = (*, gray=false, grey=false, orient=false, scaled=false, deadline=None))]
    fn decode(gray: bool, grey: bool, orient: bool, scaled: bool, deadline: Option<f64>) -> PyResult<Pipeline> {
        Pipeline::parse(&decode_text("decode", gray || grey, orient, scaled, deadline))
    }

    /// As `decode`, of JPEG files alone: any other is an error.
    #[staticmethod]
    #[pyo3(signature = (*, gray=false, grey=false, orient=false, scaled=false, deadline=None))]
    fn jpeg_decode(gray: bool, grey: bool, orient: bool, scaled: bool, deadline: Option<f64>) -> PyResult<Pipeline> {
        Pipeline::parse(&decode_text("jpeg_decode", gray || grey, orient, scaled, deadline))
    }

    /// The same pipeline with a limit, in seconds, on the decoding of one picture; the default is 20.
    fn with_deadline(&self, seconds: f64) -> PyResult<Pipeline> {
        let milliseconds = (seconds * 1000.0).round();
        if !(1.0..=f64::from(DECODE_DEADLINE_MS_MAX)).contains(&milliseconds) {
            return Err(PyValueError::new_err(format!("a deadline of {seconds} s: give 0.001 to 86400")));
        }
        Ok(self.plan.with_deadline_ms(milliseconds as u32).map_err(errors::pipeline)?.into())
    }

    /// Scales so that the shorter side is `size` pixels; with (height, width) both sides are as given. Bilinear, with antialiasing.
    fn resize(&self, size: &Bound<'_, PyAny>) -> PyResult<Pipeline> {
        self.then(&format!("resize {}", size_text(size)?))
    }

    /// Cuts out the middle: a square of `size` pixels, or (height, width). A smaller picture fails.
    fn center_crop(&self, size: &Bound<'_, PyAny>) -> PyResult<Pipeline> {
        self.then(&format!("center_crop {}", size_text(size)?))
    }

    /// Cuts out a random part: a square of `size` pixels, or (height, width). A smaller picture fails.
    fn random_crop(&self, size: &Bound<'_, PyAny>) -> PyResult<Pipeline> {
        self.then(&format!("random_crop {}", size_text(size)?))
    }

    /// A random part of the picture, with a share of its area and a ratio within these bounds, scaled to this size.
    #[pyo3(signature = (size, *, scale=(0.08, 1.0), ratio=(3.0 / 4.0, 4.0 / 3.0)))]
    fn random_resized_crop(&self, size: &Bound<'_, PyAny>, scale: (f32, f32), ratio: (f32, f32)) -> PyResult<Pipeline> {
        let (size, scale) = (size_text(size)?, format!("scale={}..{}", scale.0, scale.1));
        self.then(&format!("random_resized_crop {size} {scale} ratio={}..{}", ratio.0, ratio.1))
    }

    /// Mirrors left and right with this probability, 0 to 1.
    #[pyo3(signature = (probability=0.5))]
    fn flip(&self, probability: f32) -> PyResult<Pipeline> {
        self.then(&format!("flip {probability}"))
    }

    /// Converts to float32: (sample / 255 - mean) / std, by channel. Without arguments the numbers are ImageNet's.
    #[pyo3(signature = (mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)))]
    fn normalize(&self, mean: (f32, f32, f32), std: (f32, f32, f32)) -> PyResult<Pipeline> {
        let three = |(a, b, c): (f32, f32, f32)| format!("{a},{b},{c}");
        self.then(&format!("normalize mean={} std={}", three(mean), three(std)))
    }

    /// The order of samples: 'chw', channels × height × width, or 'hwc', height × width × channels.
    fn layout(&self, order: &str) -> PyResult<Pipeline> {
        self.then(&format!("layout {order}"))
    }

    /// Ends the pipeline: so many pictures, 1 to 65536, one behind the other. All must have one shape.
    fn batch(&self, count: i64) -> PyResult<Pipeline> {
        let fitting = u32::try_from(count).ok().filter(|count| (1..=BATCH_MAX).contains(count));
        let told = || PyValueError::new_err(format!("a batch of {count} pictures: give 1 to {BATCH_MAX}"));
        let count = fitting.ok_or_else(told)?;
        Ok(self.plan.with_batch(count).map_err(errors::pipeline)?.into())
    }

    /// The number, shape and type of a batch's pictures, such as `(128, (224, 224, 3), "uint8")`; None without a batch.
    #[getter]
    fn batch_shape(&self) -> Option<(u32, (u32, u32, u32), &'static str)> {
        let (count, shape) = self.plan.batch()?;
        let (sizes, sample) = shape_of(shape);
        Some((count, sizes, sample))
    }

    /// The programs that the drive runs, in order. The decoder does a crop that directly follows it.
    #[getter]
    fn programs(&self) -> Vec<&'static str> {
        self.plan.stages().iter().map(|planned| planned.stage.name()).collect()
    }

    fn __str__(&self) -> String {
        self.plan.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Pipeline({:?})", self.plan.to_string())
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<(Py<PyAny>, (String,))> {
        Ok((slf.get_type().into_any().unbind(), (slf.get().plan.to_string(),)))
    }

    /// Samples, shape and type of one picture of a keyspace.
    #[pyo3(signature = (keyspace, key, chance))]
    fn _run(&self, py: Python<'_>, keyspace: &Keyspace, key: Key, chance: (u64, u64, u64)) -> PyResult<Picture> {
        let handle = keyspace.handle()?;
        let (seed, epoch, item) = chance;
        let chance = ImageChance { seed, epoch, item };
        let made = py.detach(|| picture(&handle, self, key.bytes(), chance));
        let (samples, shape) = made.map_err(|error| errors::picture(&error))?;
        Ok(as_picture(samples, shape))
    }

    /// The same for a file in memory, without a store.
    #[pyo3(signature = (file, chance))]
    fn _apply(&self, py: Python<'_>, file: Key, chance: (u64, u64, u64)) -> PyResult<Picture> {
        let (seed, epoch, item) = chance;
        let chance = ImageChance { seed, epoch, item };
        let failed = |stage, error: ImageError| {
            let (place, name) = self.plan.written_name(stage, error.code().into()).unwrap_or((stage, "?"));
            let told = format!("stage {place}, {name}: {error}");
            if error == ImageError::TooLong { errors::DeadlineError::new_err(told) } else { errors::pipeline(told) }
        };
        let apply = || {
            let mut stages = self.plan.stages().iter().enumerate();
            stages.try_fold(file.into_bytes(), |bytes, (stage, planned)| {
                let made = planned.stage.apply_timed(bytes, chance, &mut || Some(thread_cpu_us()));
                made.map_err(|error| failed(stage, error))
            })
        };
        let made = py.detach(apply)?;
        let (samples, shape) = samples_of(&self.plan, made).map_err(errors::pipeline)?;
        Ok(as_picture(samples, shape))
    }
}

/// Samples, shape and type.
type Picture = (Samples, (u32, u32, u32), &'static str);

fn as_picture(samples: Vec<u8>, shape: FrameShape) -> Picture {
    let (sizes, sample) = shape_of(shape);
    (Samples::new(samples), sizes, sample)
}
