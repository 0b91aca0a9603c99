// Originals: the functions that this library stands in front of, as the next library has them.
//
// They are looked up when the library is loaded, or at the first call if that comes before: later a
// signal handler may be the caller.
#pragma once
#include <dirent.h>
#include <sys/stat.h>

#include <cstdio>

namespace softhca::abi {

struct Originals {
  int (*open)(const char*, int, ...);
  int (*openat)(int, const char*, int, ...);
  FILE* (*fopen)(const char*, const char*);
  ssize_t (*read)(int, void*, std::size_t);
  ssize_t (*read_chk)(int, void*, std::size_t, std::size_t);
  ssize_t (*pread)(int, void*, std::size_t, off_t);
  ssize_t (*pread_chk)(int, void*, std::size_t, off_t, std::size_t);
  int (*stat)(const char*, struct stat*);
  int (*lstat)(const char*, struct stat*);
  int (*fstat)(int, struct stat*);
  int (*fstatat)(int, const char*, struct stat*, int);
  int (*statx)(int, const char*, int, unsigned, struct statx*);
  int (*access)(const char*, int);
  int (*eaccess)(const char*, int);
  int (*faccessat)(int, const char*, int, int);
  ssize_t (*readlink)(const char*, char*, std::size_t);
  ssize_t (*readlinkat)(int, const char*, char*, std::size_t);
  char* (*realpath)(const char*, char*);
  DIR* (*opendir)(const char*);
  DIR* (*fdopendir)(int);
  dirent* (*readdir)(DIR*);
  int (*readdir_r)(DIR*, dirent*, dirent**);
  int (*closedir)(DIR*);
  int (*dirfd)(DIR*);
  void (*rewinddir)(DIR*);
  long (*telldir)(DIR*);
  void (*seekdir)(DIR*, long);
  int (*scandir)(const char*, dirent***, int (*)(const dirent*),
                 int (*)(const dirent**, const dirent**));
};
const Originals& original();

}  // namespace softhca::abi
