/* One decode by libjpeg-turbo, with the calls of its tj3Decompress8, which lets nobody look in between: here the caller is asked between
 * bands of rows, in each pass over the picture, whether to go on.
 *
 * 1. Errors jump out of libjpeg-turbo to `guarded`, over frames of C alone: what asks the caller returns before anything jumps.
 * 2. `tapetum_jpeg_decode` leaves nothing behind, however it ends.
 *
 * Its callers and the meaning of its numbers are in libjpeg.rs. */

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

/* As in libjpeg.rs. */
enum decode_end { DECODED, OTHER_REGION, TRUNCATED, CORRUPT, TOO_LARGE, TOO_MANY_SCANS, STOPPED };

struct decode_request {
  const unsigned char *file;
  size_t file_bytes;
  /* Room for width * height pixels of so many samples. */
  unsigned char *out;
  int (*goes_on)(void *);
  void *asked;
  /* The region, in pixels of its scale: one for `scale` of the file a side. */
  unsigned scale, x, y, width, height;
  /* 1 grey, 3 RGB, 4 the file's inks. */
  unsigned samples;
  unsigned scans_max, memory_max_mib;
};

struct decode {
  /* First: libjpeg-turbo gives this pointer to the functions below. */
  struct jpeg_decompress_struct jpeg;
  struct jpeg_error_mgr errors;
  struct jpeg_progress_mgr progress;
  jmp_buf failed;
  const struct decode_request *request;
  enum decode_end end;
  /* Of the first warning that is an error: the decode goes on, since a worse one may follow. */
  enum decode_end warned;
  /* Pixels decoded since the caller was asked. */
  size_t pixels;
};

/* About a millisecond of work. */
#define PIXELS_BETWEEN ((size_t)64 << 10)
#define BAND_ROWS 16u

_Noreturn static void fail(struct decode *decode, enum decode_end end) {
  decode->end = end;
  longjmp(decode->failed, 1);
}

static void on_error(j_common_ptr jpeg) {
  switch (jpeg->err->msg_code) {
    case JERR_OUT_OF_MEMORY:
    case JERR_NO_BACKING_STORE:
    case JERR_IMAGE_TOO_BIG:
    case JERR_WIDTH_OVERFLOW:
      fail((struct decode *)jpeg, TOO_LARGE);
    default:
      fail((struct decode *)jpeg, CORRUPT);
  }
}

/* Warnings are errors where they tell of missing or damaged pixels. */
static void on_message(j_common_ptr jpeg, int level) {
  struct decode *decode = (struct decode *)jpeg;
  if (level >= 0 || decode->warned != DECODED) return;
  switch (jpeg->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
    case JWRN_ADOBE_XFORM:
      return;
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
      decode->warned = TRUNCATED;
      return;
    default:
      decode->warned = CORRUPT;
  }
}

static void ask(struct decode *decode, size_t rows) {
  decode->pixels += rows * decode->jpeg.image_width;
  if (decode->pixels < PIXELS_BETWEEN) return;
  decode->pixels = 0;
  if (!decode->request->goes_on(decode->request->asked)) fail(decode, STOPPED);
}

/* Called for each row of blocks of each pass, before a picture of several passes gives its first pixel. */
static void on_progress(j_common_ptr jpeg) {
  struct decode *decode = (struct decode *)jpeg;
  if (decode->jpeg.input_scan_number > (int)decode->request->scans_max) fail(decode, TOO_MANY_SCANS);
  ask(decode, (size_t)decode->jpeg.max_v_samp_factor * DCTSIZE);
}

static void skip(struct decode *decode, unsigned rows) {
  if (rows > 0 && jpeg_skip_scanlines(&decode->jpeg, rows) != rows) fail(decode, OTHER_REGION);
  ask(decode, (size_t)rows * decode->request->scale);
}

static void read_rows(struct decode *decode) {
  const struct decode_request *request = decode->request;
  const size_t row_bytes = (size_t)request->width * request->samples;
  unsigned row = 0;
  while (row < request->height) {
    JSAMPROW rows[BAND_ROWS];
    unsigned left = request->height - row, read;
    if (left > BAND_ROWS) left = BAND_ROWS;
    for (unsigned place = 0; place < left; place++) rows[place] = request->out + (row + place) * row_bytes;
    read = jpeg_read_scanlines(&decode->jpeg, rows, left);
    row += read;
    ask(decode, (size_t)read * request->scale);
  }
}

static void run(struct decode *decode) {
  const struct decode_request *request = decode->request;
  struct jpeg_decompress_struct *jpeg = &decode->jpeg;
  JDIMENSION x = request->x, width = request->width;
  unsigned low = request->y + request->height;
  jpeg_create_decompress(jpeg);
  jpeg->mem->max_memory_to_use = (long)request->memory_max_mib << 20;
  jpeg->progress = &decode->progress;
  jpeg_mem_src(jpeg, request->file, request->file_bytes);
  jpeg_read_header(jpeg, TRUE);
  jpeg->out_color_space = request->samples == 1 ? JCS_GRAYSCALE : request->samples == 3 ? JCS_EXT_RGB : JCS_CMYK;
  jpeg->scale_num = 1;
  jpeg->scale_denom = request->scale;
  jpeg->do_fancy_upsampling = TRUE;
  jpeg->dct_method = JDCT_ISLOW;
  jpeg_start_decompress(jpeg);
  /* From here on rows are counted. */
  jpeg->progress = NULL;
  if (jpeg->output_components != (int)request->samples || low > jpeg->output_height || x + width > jpeg->output_width)
    fail(decode, CORRUPT);
  if (width != jpeg->output_width) {
    jpeg_crop_scanline(jpeg, &x, &width);
    if (x != request->x || width != request->width) fail(decode, OTHER_REGION);
  }
  skip(decode, request->y);
  read_rows(decode);
  skip(decode, jpeg->output_height - low);
  /* Reads to the end of the file, which may tell that it has none. */
  jpeg_finish_decompress(jpeg);
  decode->end = decode->warned;
}

static void guarded(struct decode *decode) {
  if (setjmp(decode->failed) == 0) run(decode);
}

int tapetum_jpeg_decode(const struct decode_request *request) {
  struct decode decode;
  memset(&decode, 0, sizeof(decode));
  decode.request = request;
  decode.end = CORRUPT;
  decode.jpeg.err = jpeg_std_error(&decode.errors);
  decode.errors.error_exit = on_error;
  decode.errors.emit_message = on_message;
  decode.progress.progress_monitor = on_progress;
  guarded(&decode);
  jpeg_destroy_decompress(&decode.jpeg);
  return decode.end;
}
