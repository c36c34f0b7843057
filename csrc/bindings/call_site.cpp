// SPDX-License-Identifier: Apache-2.0
#include "call_site.h"

#include <Python.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace anvil {
namespace {

// CPython's own, for fault handlers: writes the frames of a thread to a file, innermost first,
// without a lock or an allocation.
using DumpTraceback = void (*)(int file, PyThreadState* thread);

DumpTraceback dump_traceback = nullptr;
int dump_file = -1;
std::atomic_flag dump_busy = ATOMIC_FLAG_INIT;
char dump[16384];  // guarded by dump_busy; a signal's stack may be too small for it

std::vector<std::string>& folders_between() {
  static std::vector<std::string>& folders = *new std::vector<std::string>;
  return folders;
}

bool is_between(std::string_view file) {
  return std::any_of(folders_between().begin(), folders_between().end(),
                     [file](const std::string& folder) { return file.starts_with(folder); });
}

std::string_view base_name(std::string_view file) {
  const size_t slash = file.rfind('/');
  return slash == std::string_view::npos ? file : file.substr(slash + 1);
}

// Puts texts one after another into a buffer, as far as there is room; ends it with a zero.
class Writer {
 public:
  Writer(char* text, size_t capacity) : next_(text), room_(capacity - 1) { *next_ = '\0'; }

  Writer& operator<<(std::string_view part) {
    const size_t count = std::min(part.size(), room_);
    std::memcpy(next_, part.data(), count);
    next_ += count;
    room_ -= count;
    *next_ = '\0';
    return *this;
  }

 private:
  char* next_;
  size_t room_;
};

// One line of a dump: `  File "/path/file.py", line 12 in step`.
struct Frame {
  std::string_view file, line, function;

  static bool parse(std::string_view text, Frame* frame) {
    constexpr std::string_view kFile = "  File \"", kLine = "\", line ", kIn = " in ";
    if (!text.starts_with(kFile)) return false;
    text.remove_prefix(kFile.size());
    const size_t line = text.find(kLine);
    if (line == std::string_view::npos) return false;
    frame->file = text.substr(0, line);
    text.remove_prefix(line + kLine.size());
    const size_t in = text.find(kIn);
    if (in == std::string_view::npos) return false;
    frame->line = text.substr(0, in);
    frame->function = text.substr(in + kIn.size());
    return true;
  }

  void write(char* text, size_t capacity) const {
    Writer(text, capacity) << base_name(file) << ":" << line << " in " << function;
  }
};

void find_frame(std::string_view lines, char* text, size_t capacity) {
  Frame innermost, frame;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    const bool parsed = Frame::parse(lines.substr(0, end), &frame);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (!parsed) continue;
    if (innermost.file.empty()) innermost = frame;
    if (!is_between(frame.file)) return frame.write(text, capacity);
  }
  if (!innermost.file.empty()) innermost.write(text, capacity);
}

// The calling thread's, if Python knows it.
PyThreadState* thread_state() {
  return Py_IsInitialized() != 0 ? PyGILState_GetThisThreadState() : nullptr;
}

// "/path/file.py" of the code object; "" when it cannot be told. Borrowed from it.
std::string_view text_of(PyObject* string) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(string, &size);
  if (text != nullptr) return {text, static_cast<size_t>(size)};
  PyErr_Clear();
  return "";
}

void write_frame(PyFrameObject* frame, char* text, size_t capacity) {
  PyCodeObject* code = PyFrame_GetCode(frame);
  char line[16];
  std::snprintf(line, sizeof line, "%d", PyFrame_GetLineNumber(frame));
  Frame{text_of(code->co_filename), line, text_of(code->co_name)}.write(text, capacity);
  Py_DECREF(code);
}

bool is_between(PyFrameObject* frame) {
  PyCodeObject* code = PyFrame_GetCode(frame);
  const bool between = is_between(text_of(code->co_filename));
  Py_DECREF(code);
  return between;
}

void call_site_with_gil(char* text, size_t capacity) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);  // of a caller that is failing already
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  if (frame != nullptr) write_frame(frame, text, capacity);
  while (frame != nullptr && is_between(frame)) {
    PyFrameObject* outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  if (frame != nullptr) {
    write_frame(frame, text, capacity);
    Py_DECREF(frame);
  }
  PyErr_Restore(type, value, traceback);
}

}  // namespace

void prepare_call_sites(std::vector<std::string> folders) {
  folders_between() = std::move(folders);
  dump_traceback = reinterpret_cast<DumpTraceback>(dlsym(RTLD_DEFAULT, "_Py_DumpTraceback"));
  if (dump_file < 0) dump_file = memfd_create("anvil call site", MFD_CLOEXEC);
}

void signal_safe_call_site(char* text, size_t capacity) {
  if (capacity == 0) return;
  text[0] = '\0';
  PyThreadState* thread = thread_state();
  if (thread == nullptr || dump_traceback == nullptr || dump_file < 0) return;
  // Another thread's report matters more than this one's place.
  if (dump_busy.test_and_set(std::memory_order_acquire)) return;
  if (lseek(dump_file, 0, SEEK_SET) == 0 && ftruncate(dump_file, 0) == 0) {
    dump_traceback(dump_file, thread);
    const ssize_t size = pread(dump_file, dump, sizeof dump, 0);
    if (size > 0) find_frame({dump, static_cast<size_t>(size)}, text, capacity);
  }
  dump_busy.clear(std::memory_order_release);
}

void call_site(char* text, size_t capacity) {
  if (capacity == 0) return;
  text[0] = '\0';
  if (thread_state() == nullptr) return;
  if (PyGILState_Check() != 0) {
    call_site_with_gil(text, capacity);
  } else {
    // Its frames stand still while it is here. Waiting for the GIL instead could be for ever: the
    // thread that has it may be waiting for something that this one holds.
    signal_safe_call_site(text, capacity);
  }
}

}  // namespace anvil
