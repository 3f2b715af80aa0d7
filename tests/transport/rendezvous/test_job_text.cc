/* Launchers' texts: Slurm host lists and task counts, Open MPI contacts. */
#include <string>

#include <gtest/gtest.h>

#include "transport/rendezvous/job.h"

namespace
{

std::string first_host(const char *list)
{
    char host[32];
    return tw_hostlist_first(list, host, sizeof(host)) == TW_OK ? host : "refused";
}

std::string contact(const char *text)
{
    char host[32];
    return tw_contact_host(text, host, sizeof(host)) == TW_OK ? host : "refused";
}

TEST(JobText, FirstHostOfAList)
{
    EXPECT_EQ(first_host("node1"), "node1");
    EXPECT_EQ(first_host("node1,node2"), "node1");
    EXPECT_EQ(first_host("node[01-04]"), "node01");
    EXPECT_EQ(first_host("node[7]"), "node7");
    EXPECT_EQ(first_host("node[003,7-9],gpu[1-2]"), "node003");
    EXPECT_EQ(first_host("rack[2-3]node[05-06].example.org,x"), "rack2node05.example.org");
    EXPECT_EQ(first_host("n-[1-2]-ib"), "n-1-ib");
}

TEST(JobText, RefusesWhatIsNoList)
{
    EXPECT_EQ(first_host(""), "refused");
    EXPECT_EQ(first_host(",node1"), "refused");
    EXPECT_EQ(first_host("node[01-04"), "refused");
    EXPECT_EQ(first_host("[]"), "refused");
    EXPECT_EQ(first_host("node 1"), "refused");
    EXPECT_EQ(first_host("node;reboot"), "refused");
    EXPECT_EQ(first_host("a234567890123456789012345678901"), "a234567890123456789012345678901");
    EXPECT_EQ(first_host("a2345678901234567890123456789012"), "refused");
    EXPECT_EQ(first_host("a234567890123456789012345678[012-100]"), "a234567890123456789012345678012");
    EXPECT_EQ(first_host("a234567890123456789012345678[0123-1000]"), "refused");
}

TEST(JobText, TasksPerNode)
{
    const char *list = "4(x2),1,3(x3)";
    const int expected[] = {4, 4, 1, 3, 3, 3, -1};
    for (int i = 0; i < 7; i++) {
        EXPECT_EQ(tw_tasks_per_node(list, i), expected[i]) << i;
    }
    EXPECT_EQ(tw_tasks_per_node(list, -1), -1);
    EXPECT_EQ(tw_tasks_per_node("2", 0), 2);
    EXPECT_EQ(tw_tasks_per_node("", 0), -1);
    EXPECT_EQ(tw_tasks_per_node("x", 0), -1);
    EXPECT_EQ(tw_tasks_per_node("2(x0)", 0), -1);
    EXPECT_EQ(tw_tasks_per_node("2(x0),3", 0), -1);
    EXPECT_EQ(tw_tasks_per_node("0,3", 1), -1);
    EXPECT_EQ(tw_tasks_per_node("2(x", 1), -1);
    EXPECT_EQ(tw_tasks_per_node("99999999999999999999", 0), -1);
    EXPECT_EQ(tw_tasks_per_node("2(x99999999999999999999)", 5), 2);
}

TEST(JobText, ContactHost)
{
    EXPECT_EQ(contact("567017472.0;tcp://192.0.2.2:46787;tcp6://[fd00::2]:36781"), "192.0.2.2");
    EXPECT_EQ(contact("1.0;tcp://10.0.0.1,172.17.0.1:34567"), "10.0.0.1");
    EXPECT_EQ(contact("567017472.0;tcp6://[fd00::2]:36781"), "fd00::2");
    EXPECT_EQ(contact("1.0;tcp6://[fd00::12:34]:36781"), "fd00::12:34");
    EXPECT_EQ(contact("567017472.0;tcp6://[fd00::2,fd00::3]:36781"), "refused");
    EXPECT_EQ(contact("1.0;tcp6://[fd00::2"), "refused");
    EXPECT_EQ(contact("1.0;tcp6://[host name]:1"), "refused");
    EXPECT_EQ(contact("1.0;usock"), "refused");
    EXPECT_EQ(contact("tcp://"), "refused");
    EXPECT_EQ(contact(""), "refused");
}

} // namespace
