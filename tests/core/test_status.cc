#include <cerrno>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "core/core.h"

static const tw_status_t all[] = {
#define TW_STATUS_NAME(name, value, text) name,
    TW_STATUS_LIST(TW_STATUS_NAME)
#undef TW_STATUS_NAME
};

TEST(Status, EveryCodeHasItsOwnTextAndSign)
{
    std::set<std::string> texts;
    std::set<int> values;
    for (tw_status_t status : all) {
        texts.insert(tw_status_string(status));
        values.insert(status);
        EXPECT_STRNE(tw_status_string(status), "unknown status");
        EXPECT_EQ(status < 0, status != TW_OK && status != TW_IN_PROGRESS);
    }
    EXPECT_EQ(texts.size(), std::size(all));
    EXPECT_EQ(values.size(), std::size(all));
    EXPECT_EQ(TW_OK, 0);
    EXPECT_EQ(TW_IN_PROGRESS, 1);
}

TEST(Status, StringOfWhatIsNotInTheList)
{
    for (int value : {2, 100, -19, -1000}) {
        EXPECT_STREQ(tw_status_string(tw_status_t(value)), "unknown status") << value;
    }
}

TEST(Status, VersionIsTheHeaders)
{
    EXPECT_STREQ(tw_version(), TW_VERSION);
}

TEST(Status, FromErrno)
{
    EXPECT_EQ(tw_status_from_errno(ENOMEM), TW_ERR_NO_MEMORY);
    EXPECT_EQ(tw_status_from_errno(ETIMEDOUT), TW_ERR_TIMEOUT);
    EXPECT_EQ(tw_status_from_errno(EINVAL), TW_ERR_INVALID);
    EXPECT_EQ(tw_status_from_errno(ENOENT), TW_ERR_NOT_FOUND);
    for (int error : {EIO, EPIPE, ECONNRESET, EACCES, 0, 9999}) {
        EXPECT_EQ(tw_status_from_errno(error), TW_ERR_IO) << error;
    }
}
