// What goes wrong with files, disks and processes, and what the file tier makes of it.
#include <spawn.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "oasis/base/units.h"
#include "oasis/kv/file_tier_fixture.h"

extern char** environ;

namespace oasis::kv {
namespace {

class FileTierFaults : public FileTierTest {};

// case 32
TEST_F(FileTierFaults, AFlippedByteFailsItsHomeAlone) {
  open(60);
  for (HomeId home = 0; home < 3; ++home) write_home(home, home * 5);
  push_out(3);
  change_byte({1, 1}, 100);
  ASSERT_TRUE(fetch({{1, 0}}).ok());
  tier_->release({1, 0});
  EXPECT_TRUE(tier_->present({1, 0}));
  const Status status = fetch({{1, 1}});
  EXPECT_EQ(status.code(), StatusCode::kDataCorruption);
  EXPECT_NE(status.message().find("home 1 layer 1"), std::string::npos) << status.message();
  EXPECT_EQ(tier_->acquire({1, 1}), nullptr);
  tier_->release({1, 1});
  EXPECT_EQ(tier_->status(1).code(), StatusCode::kDataCorruption);
  EXPECT_FALSE(tier_->present({1, 0}));
  EXPECT_EQ(fetch({{1, 0}}).code(), StatusCode::kDataCorruption);
  tier_->release({1, 0});
  EXPECT_FALSE(tier_->begin_write({1, 0}).ok());
  EXPECT_EQ(tier_->stats().checksum_failures, 1);
  expect_home(0, 0);
  expect_home(2, 10);
  tier_->drop(1);
  EXPECT_TRUE(tier_->status(1).ok());
  write_home(1, 77);
  expect_home(1, 77);
}

// case 32
TEST_F(FileTierFaults, ATruncatedFileFailsTheHomesBeyondItsEnd) {
  open(60);
  for (HomeId home = 0; home < 3; ++home) write_home(home, home * 5);
  push_out(3);
  // In the middle of home 1, and of a sector.
  ASSERT_EQ(truncate(path_.c_str(), TierFile::kHeaderBytes + 3 * kFrameBytes + 700), 0);
  EXPECT_EQ(fetch({{1, 1}}).code(), StatusCode::kDataCorruption);
  tier_->release({1, 1});
  EXPECT_EQ(fetch({{2, 0}}).code(), StatusCode::kDataCorruption);
  tier_->release({2, 0});
  expect_home(0, 0);
}

TEST_F(FileTierFaults, AReaderKeepsItsBytesWhenTheHomeFails) {
  open(60);
  write_home(0, 9);
  push_out(1);
  change_byte({0, 1}, 0);
  ASSERT_TRUE(fetch({{0, 0}}).ok());
  const std::byte* bytes = tier_->acquire({0, 0});
  EXPECT_EQ(fetch({{0, 1}}).code(), StatusCode::kDataCorruption);
  EXPECT_TRUE(holds(bytes, 9));
  EXPECT_EQ(tier_->acquire({0, 0}), nullptr);
  tier_->release({0, 0});
  tier_->release({0, 0});
  tier_->release({0, 1});
  tier_->drop(0);
  write_home(0, 3);
  expect_home(0, 3);
}

TEST_F(FileTierFaults, AFailedWriteFailsItsHomeAlone) {
  for (const int error : {EIO, ENOSPC}) {
    Gate gate;
    open(60, 16, gate.factory());
    gate.fail({1, 1}, error);
    for (HomeId home = 0; home < 3; ++home) write_home(home, home);
    tier_->flush();
    EXPECT_TRUE(eventually([&] { return !tier_->status(1).ok(); }));
    EXPECT_EQ(tier_->status(1).code(), StatusCode::kIo);
    EXPECT_NE(tier_->status(1).message().find(std::strerror(error)), std::string::npos) << tier_->status(1).message();
    EXPECT_EQ(tier_->acquire({1, 0}), nullptr);
    expect_home(0, 0);
    expect_home(2, 2);
    tier_.reset();
  }
}

TEST_F(FileTierFaults, AFailedReadFailsItsHomeAloneAndEveryoneWhoWaitsForIt) {
  open(60, 16, gate_.factory());
  for (HomeId home = 0; home < 3; ++home) write_home(home, home);
  push_out(3);
  gate_.fail({1, 0}, EIO);
  gate_.hold(true, false);
  const std::vector<PartKey> parts = {{0, 0}, {1, 0}, {1, 1}, {2, 0}};
  FetchTicket a, b;
  tier_->fetch(parts, a);
  tier_->fetch(parts, b);
  gate_.hold(false, false);
  EXPECT_EQ(a.wait().code(), StatusCode::kIo);
  EXPECT_EQ(b.wait().code(), StatusCode::kIo);
  EXPECT_NE(tier_->acquire({2, 0}), nullptr);
  tier_->release({2, 0});
  for (const PartKey key : parts) tier_->release(key);
  for (const PartKey key : parts) tier_->release(key);
  tier_->drop(1);
  expect_home(0, 0);
  expect_home(2, 2);
}

TEST_F(FileTierFaults, ATierClosedWithWorkUnderWayTellsWhoWaits) {
  open(60, 16, gate_.factory());
  write_home(0, 1);
  push_out(1);
  for (HomeId home = 1; home < 5; ++home) tier_->drop(home), write_home(home, 1);
  std::vector<PartKey> parts;
  for (HomeId home = 0; home < 16; ++home) parts.push_back({home, 0});
  FetchTicket a, b;
  gate_.hold(true, false);
  tier_->fetch(parts, a);
  tier_->fetch(std::vector<PartKey>{{40, 0}}, b);
  gate_.hold(false, false);
  tier_.reset();
  EXPECT_TRUE(a.done());
  EXPECT_TRUE(b.done());
}

TEST_F(FileTierFaults, TheFileIsGoneAfterwards) {
  open(20);
  EXPECT_TRUE(std::filesystem::exists(path_));
  tier_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(FileTierFaults, AFileThatTookThePlaceOfTheTiersStays) {
  open(20);
  std::filesystem::rename(path_, path_ + ".moved");
  std::ofstream(path_) << "notes";
  tier_.reset();
  EXPECT_TRUE(std::filesystem::exists(path_));
  std::filesystem::remove(path_);
  std::filesystem::remove(path_ + ".moved");
}

TEST_F(FileTierFaults, TheFileBehindALinkIsGoneAfterwardsAndTheLinkStays) {
  const std::string file = path_ + ".file";
  std::filesystem::create_symlink(file, path_);
  open(20);
  EXPECT_TRUE(std::filesystem::exists(file));
  tier_.reset();
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
  std::filesystem::remove(path_);
}

TEST_F(FileTierFaults, AFileOfSomethingElseIsLeftAlone) {
  std::ofstream(path_) << "a letter, not a cache";
  const Status status = make_file_tier(test_config(), config(20, 16)).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("something else"), std::string::npos) << status.message();
  std::string text;
  std::getline(std::ifstream(path_), text);
  EXPECT_EQ(text, "a letter, not a cache");
  std::filesystem::remove(path_);
}

TEST_F(FileTierFaults, AFileInUseIsRefused) {
  open(20);
  const Status status = make_file_tier(test_config(), config(20, 16)).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("in use"), std::string::npos) << status.message();
  write_home(0, 3);
  expect_home(0, 3);
}

// case 63
TEST_F(FileTierFaults, AFolderThatCannotBeWrittenToIsAnErrorThatSaysSo) {
  for (const char* path : {"/nonexistent-folder/tier", "/proc/tier", "/"}) {
    path_ = path;
    const Status status = make_file_tier(test_config(), config(20, 16)).status();
    EXPECT_EQ(status.code(), StatusCode::kIo) << path;
    EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
  }
  path_ = "/dev/null";
  EXPECT_EQ(make_file_tier(test_config(), config(20, 16)).status().code(), StatusCode::kInvalidArgument);
}

// A small file system of its own, where that is allowed.
class SmallDisk {
 public:
  explicit SmallDisk(const char* options) : path_(temp_path()) {
    std::filesystem::create_directory(path_);
    mounted_ = mount("none", path_.c_str(), "tmpfs", 0, options) == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount(path_.c_str());
    std::filesystem::remove(path_);
  }
  bool mounted() const { return mounted_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool mounted_;
};

TEST_F(FileTierFaults, AFullDiskIsAnErrorThatNamesWhatIsAskedForAndFree) {
  const SmallDisk disk("size=8m");
  if (!disk.mounted()) GTEST_SKIP() << "may not mount";
  path_ = disk.path() + "/tier";
  const Status status = make_file_tier(test_config(), config(2000, 16)).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(
      status.message().find(fmt::format("{} asked for", format_bytes(4096 + int64_t{2000} * kLayers * kFrameBytes))),
      std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("8.00 MiB are free"), std::string::npos) << status.message();
  EXPECT_FALSE(std::filesystem::exists(path_));
  open(900);  // without O_DIRECT or with, it works where it fits
  for (HomeId home = 0; home < 900; ++home) write_home(home, home);
  for (HomeId home = 0; home < 900; home += 50) expect_home(home, home);
  tier_.reset();
}

// case 63
TEST_F(FileTierFaults, AReadOnlyDiskIsAnErrorThatSaysSo) {
  const SmallDisk disk("size=8m,ro");
  if (!disk.mounted()) GTEST_SKIP() << "may not mount";
  path_ = disk.path() + "/tier";
  const Status status = make_file_tier(test_config(), config(20, 16)).status();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_NE(status.message().find("Read-only"), std::string::npos) << status.message();
}

TEST(IoBackend, AThreadThatTheSystemRefusesIsAnExceptionAndTheOthersEnd) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer does not run with little address space";
#endif
  const auto start_too_many = [] {
    rlimit limit{};
    limit.rlim_cur = limit.rlim_max = rlim_t{2} << 30;  // a few hundred stacks
    setrlimit(RLIMIT_AS, &limit);
    try {
      make_thread_backend(-1, 10000);
    } catch (const std::system_error&) {
      std::_Exit(7);
    }
  };
  EXPECT_EXIT(start_too_many(), testing::ExitedWithCode(7), "");
}

// Run by the next test in a process of its own.
TEST_F(FileTierFaults, DISABLED_WritesUntilKilled) {
  alarm(60);  // should whoever is to kill it be gone
  path_ = std::getenv("OASIS_KV_VICTIM");
  open(200);
  for (int64_t seed = 0;; ++seed) {
    const auto home = static_cast<HomeId>(seed % 200);
    tier_->drop(home);
    write_home(home, seed);
    if (seed == 20) std::puts("writing"), std::fflush(stdout);
  }
}

// case 34. OASIS_KILLS sets how many writers die (default 20).
TEST_F(FileTierFaults, AKilledWriterLeavesNothingBehindThatIsBelieved) {
  const char* kills = std::getenv("OASIS_KILLS");
  for (int round = 0; round < (kills ? std::atoi(kills) : 20); ++round) {
    int output[2];
    ASSERT_EQ(pipe(output), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, output[1], 1);
    posix_spawn_file_actions_addclose(&actions, output[0]);
    setenv("OASIS_KV_VICTIM", path_.c_str(), 1);
    const char* arguments[] = {"kv_test", "--gtest_also_run_disabled_tests", "--gtest_brief=1",
                               "--gtest_filter=FileTierFaults.DISABLED_WritesUntilKilled", nullptr};
    pid_t child = 0;
    ASSERT_EQ(posix_spawn(&child, "/proc/self/exe", &actions, nullptr, const_cast<char**>(arguments), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(output[1]);
    std::string text;
    char byte = 0;
    while (text.find("writing") == std::string::npos && ::read(output[0], &byte, 1) == 1) text += byte;
    EXPECT_NE(text.find("writing"), std::string::npos) << text;
    std::this_thread::sleep_for(std::chrono::microseconds(137 * round));
    kill(child, SIGKILL);
    int how = 0;
    waitpid(child, &how, 0);
    EXPECT_TRUE(WIFSIGNALED(how));
    close(output[0]);

    EXPECT_TRUE(std::filesystem::exists(path_));
    open(200);
    for (HomeId home = 0; home < 200; ++home) ASSERT_EQ(tier_->acquire({home, 0}), nullptr);
    EXPECT_EQ(fetch({{0, 0}}).code(), StatusCode::kNotFound);
    tier_->release({0, 0});
    write_home(0, round);
    push_out(1);
    expect_home(0, round);
    tier_.reset();
  }
}

}  // namespace
}  // namespace oasis::kv
