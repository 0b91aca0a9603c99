#include "cli/program_file.h"

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/cursor.h"
#include "os/environment.h"

namespace softhca::cli {
namespace {

// Program headers and the interpreter's name lie at the front of every executable seen so far.
constexpr std::size_t kFrontBytes = std::size_t{64} << 10;

constexpr std::uint16_t kThisMachine =
#if defined(__x86_64__)
    EM_X86_64;
#elif defined(__aarch64__)
    EM_AARCH64;
#else
    EM_NONE;
#endif

// The record at an offset, if it lies within.
template <class T>
std::optional<T> record_at(ConstBytes content, std::uint64_t offset) {
  Cursor cursor(content);
  cursor.take(offset);
  const ConstBytes bytes = cursor.take(sizeof(T));
  if (bytes.empty()) return std::nullopt;
  T record;
  std::memcpy(&record, bytes.data(), sizeof record);
  return record;
}

std::string text_of(ConstBytes bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text.substr(0, text.find('\0'));
}

ProgramFile classify_elf(ConstBytes content) {
  const auto header = record_at<Elf64_Ehdr>(content, 0);
  if (!header) return {};
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != kThisMachine)
    return {.path = {}, .kind = ProgramKind::Foreign, .interpreter = {}};
  for (std::uint64_t i = 0; i < header->e_phnum; ++i) {
    const auto segment = record_at<Elf64_Phdr>(content, header->e_phoff + i * sizeof(Elf64_Phdr));
    if (!segment) return {};
    if (segment->p_type != PT_INTERP) continue;
    Cursor cursor(content);
    cursor.take(segment->p_offset);
    const std::string interpreter = text_of(cursor.take(segment->p_filesz));
    if (interpreter.empty()) return {};
    return {.path = {}, .kind = ProgramKind::Dynamic, .interpreter = interpreter};
  }
  return {.path = {}, .kind = ProgramKind::Static, .interpreter = {}};
}

ProgramFile classify_script(std::string line) {
  line = line.substr(2, line.find('\n') - 2);
  std::istringstream words(line);
  ProgramFile script{.path = {}, .kind = ProgramKind::Script, .interpreter = {}};
  words >> script.interpreter;
  return script;
}

bool gains_rights(const std::filesystem::path& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return false;
  return ((found.st_mode & S_ISUID) != 0 && found.st_uid != ::getuid()) ||
         ((found.st_mode & S_ISGID) != 0 && found.st_gid != ::getgid());
}

bool is_executable(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::optional<std::filesystem::path> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos)
    return is_executable(name) ? std::optional(std::filesystem::path(name)) : std::nullopt;
  std::istringstream folders(os::env_text("PATH").value_or("/bin:/usr/bin"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto path = std::filesystem::path(folder.empty() ? "." : folder) / name;
    if (is_executable(path)) return path;
  }
  return std::nullopt;
}

ProgramFile classify_program(ConstBytes content) {
  const std::string front = text_of(content.first(std::min<std::size_t>(content.size(), 4096)));
  if (front.starts_with(ELFMAG)) return classify_elf(content);
  if (front.starts_with("#!")) return classify_script(front);
  return {};
}

ProgramFile examine_program(const std::filesystem::path& path) {
  std::vector<char> front(kFrontBytes);
  std::ifstream file(path, std::ios::binary);
  file.read(front.data(), static_cast<std::streamsize>(front.size()));
  front.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  ProgramFile program = classify_program(std::as_bytes(std::span(front)));
  program.path = path;
  program.gains_rights = gains_rights(path);
  return program;
}

std::string why_not_injected(const ProgramFile& program) {
  if (program.gains_rights)
    return "it is setuid or setgid, so the loader ignores LD_LIBRARY_PATH; use a copy without that"
           " bit";
  if (program.kind == ProgramKind::Static)
    return "it is statically linked and loads no libraries; link it dynamically";
  if (program.kind == ProgramKind::Foreign)
    return "it is for another machine or word size than SoftHCA's libraries";
  return "";
}

}  // namespace softhca::cli
